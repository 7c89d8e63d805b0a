"""HTTP routes: each reads a request, calls the gateway, and responds in its dialect."""
