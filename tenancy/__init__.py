"""Tenants, projects and API keys: who sends a request, and what they may do."""
