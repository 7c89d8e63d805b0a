"""/scim/v2: a tenant's directory as SCIM 2.0 clients keep it (RFC 7643, RFC 7644)."""
