"""Makes usage of the engine's counts, and records it durably."""
