"""The admin API, for operators: the people who run this installation, each with a key of their own."""
