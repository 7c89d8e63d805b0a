"""Bank transfers: entries of statements, as camt.053 or CSV, and which invoices they pay."""
