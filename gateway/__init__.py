"""The API: what a tenant or an admin can ask for."""
