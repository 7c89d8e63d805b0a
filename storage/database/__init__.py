"""PostgreSQL or SQLite behind the same few verbs, and the schema that is migrated in it."""
