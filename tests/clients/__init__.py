"""Vendors' and frameworks' newest clients against the demo model, unchanged but base URL and key (`make test-clients`).

Each runs in an environment of its own, which `tests.clients.environments` makes: their needs contradict each other.
"""
