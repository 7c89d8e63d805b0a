"""Vendors' and frameworks' newest clients against the demo model, unchanged but base URL and key (`make test-clients`).

They run in environments beside the checkout's, which `tests.clients.environments` makes of requirements/clients.
"""
