"""Adapters of projects at the gateway: checking what is uploaded, and finding what a request names."""
