"""The prompt cache: block keys and block pools (`kv`), and what a request is promised (`promise`)."""
