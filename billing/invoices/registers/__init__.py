"""Registers that others keep: which VAT ids are registered (VIES), and exchange rates (ECB). Answers are recorded."""
