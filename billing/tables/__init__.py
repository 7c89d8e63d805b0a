"""The tables of money, by what they are about."""
