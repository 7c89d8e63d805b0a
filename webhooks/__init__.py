"""Signed webhooks: what the outbox holds, told to the endpoints of its tenant, at least once."""
