"""Signed webhooks: delivers the messages of the outbox to the endpoints of their tenant, at least once."""
