"""The commands: those that start processes, and those that look after tenants, keys, prices and the books."""
