"""Cached KV as an engine keeps it: keyed hashes of blocks, and pools of blocks in groups of layers."""
