"""Tenants, projects and keys: who is asking, and what may they do."""
