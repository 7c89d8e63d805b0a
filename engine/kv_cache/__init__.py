"""The device memory that holds KV, in blocks."""
