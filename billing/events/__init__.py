"""Usage events as rows: their columns, the hash chain over them, and hourly sums."""
