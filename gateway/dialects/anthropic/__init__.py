"""Anthropic's reports and errors."""
