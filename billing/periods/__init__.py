"""Billing periods, and how long rows are kept."""
