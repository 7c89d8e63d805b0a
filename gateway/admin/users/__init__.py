"""Users: signing in, their accounts, invitations, and what they are members of."""
