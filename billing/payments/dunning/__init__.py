"""Reminders of invoices that are overdue, by e-mail."""
