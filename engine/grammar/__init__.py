"""Output that a grammar allows."""
