"""Responses that are kept: sealed per project, until they expire or are deleted."""
