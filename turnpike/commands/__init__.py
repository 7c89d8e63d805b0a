"""The commands by which an operator looks after tenants, keys, prices and the books."""
