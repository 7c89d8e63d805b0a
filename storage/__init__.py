"""Where rows and volatile counters live: PostgreSQL and Redis, or their embedded equivalents."""
