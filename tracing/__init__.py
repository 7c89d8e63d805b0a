"""OpenTelemetry: spans made of a request's marks when it has ended, and sent to a collector. No text of any request."""
