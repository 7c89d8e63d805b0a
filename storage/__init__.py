"""Storage: the database and the message bus with their embedded equivalents, and helpers for files and waiting."""
