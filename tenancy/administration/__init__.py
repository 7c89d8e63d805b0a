"""What operators do to tenants beside their rows: suspending them; and who the operators are."""
