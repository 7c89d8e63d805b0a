"""Responses that outlive their request: kept for those that go on from them, and run in the background."""
