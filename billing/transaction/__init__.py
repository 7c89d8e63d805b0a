"""One transaction over money: holds, budgets, events, ledger and balances, in one order of locks."""
