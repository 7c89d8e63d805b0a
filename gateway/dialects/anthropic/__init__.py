"""Anthropic's wire formats: the Messages API, models, reports and errors."""
