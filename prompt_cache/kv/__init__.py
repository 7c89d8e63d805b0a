"""Cached KV in an engine: block keys, and block pools by layer group. No tensors, no database."""
