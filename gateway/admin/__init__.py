"""The admin API: what those who run this installation can ask for, each by a key of their own."""
