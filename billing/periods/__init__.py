"""Billing periods, and how they close."""
