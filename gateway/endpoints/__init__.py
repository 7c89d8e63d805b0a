"""HTTP routes: each reads a request, asks the gateway, and answers in its dialect."""
