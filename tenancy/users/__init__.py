"""Users and their sign-in: accounts, roles, passwords, second factors, sessions and one-time links."""
