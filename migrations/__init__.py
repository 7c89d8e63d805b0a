"""The history of the database's schema (Alembic). Sees the tables of every room."""
