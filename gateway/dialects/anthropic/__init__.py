"""Anthropic's wire formats: reports and errors; the Messages API is not there yet."""
