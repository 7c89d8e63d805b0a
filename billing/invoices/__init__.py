"""Invoices: from rated usage to numbered, immutable documents."""
