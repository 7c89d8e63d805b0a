"""A tenant's money: balances, adjustments, statements, and ids that count once."""
