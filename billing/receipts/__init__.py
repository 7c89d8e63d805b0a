"""Receipts: what a tenant can hold against its invoice, signed with each answer and numbered in the file of its day."""
