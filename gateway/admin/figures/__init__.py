"""Figures of /admin/v1: series of usage, overviews, what the cache did; each says until when it is complete."""
