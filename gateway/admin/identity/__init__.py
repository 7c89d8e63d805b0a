"""/admin/v1 of identity providers, passkeys and directories."""
