"""Served models as the gateway knows them, by name: text side, limits, defaults, replicas, price."""
