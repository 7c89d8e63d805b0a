"""Exports for finance: files that can be made again byte for byte, each with a manifest."""
