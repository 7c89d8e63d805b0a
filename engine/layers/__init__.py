"""The parts that models are made of. All are row-wise: a row's bits do not depend on the other rows (E1)."""
