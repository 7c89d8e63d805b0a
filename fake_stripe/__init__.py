"""A stateful stand-in for Stripe on the loopback, for tests and the demonstration: it never leaves this machine.

It keeps objects, checks every request against the SDK's typed parameters, replays idempotency keys, signs webhooks, and
makes the faults that it is told to make.
"""
