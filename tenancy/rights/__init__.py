"""What anybody may do: permissions, roles, the limits of keys, and that nobody gives more than they have."""
