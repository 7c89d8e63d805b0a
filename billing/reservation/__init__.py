"""Money reserved at admission: holds decided, taken, given back, and budgets."""
