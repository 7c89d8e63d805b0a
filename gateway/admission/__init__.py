"""Decides whether a request may run now, and reserves its money."""
