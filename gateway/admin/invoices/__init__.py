"""Invoices, their lines and files, who they are from and for, and the periods that they bill."""
