"""What to keep in a tier and what to give up: eviction, shares of scopes, admission to disk, fetch or recompute.

No tensors, no I/O: pools and stores ask, and move the bytes themselves.
"""
