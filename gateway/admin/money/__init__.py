"""What tenants have and pay: balances, money put in, budgets, prices and terms."""
