"""Stripe as a payment provider: credentials, calls, what its objects say, and the signature of its webhooks.

The SDK is imported when a call is made: most processes never do.
"""
