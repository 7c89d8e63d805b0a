"""Collecting money: through a payment provider, and by bank transfer. We rate and invoice, they collect."""
