"""Adapters of tenants: low-rank additions to the base model's linear layers, many in one step."""
