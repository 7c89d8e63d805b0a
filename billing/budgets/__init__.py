"""How much of a tenant's money a part of it may use."""
