"""Rate limits: what a tenant's project or key may use a minute, and at once."""
