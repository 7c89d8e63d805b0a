"""Prometheus metrics of a gateway and its processes."""
