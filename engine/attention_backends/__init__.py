"""Attention by libraries, for replicas that are to be fast rather than exact: a module each, and who chooses."""
