"""What invoices do in the ledger: how usage was paid for, what goes back to balances, and the entries posted."""
