"""API keys: of tenants and projects, and of operators."""
