"""Who comes in by what others run: identity providers (OpenID Connect), passkeys, and directories (SCIM 2.0)."""
