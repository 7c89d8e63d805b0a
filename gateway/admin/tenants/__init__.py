"""Tenants and projects: list and create, suspend, limit."""
