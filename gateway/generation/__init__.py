"""One request's life in the gateway: its task, its output as it grows, its outcome."""
