"""Money reserved at admission."""
