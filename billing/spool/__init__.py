"""A gateway's durable queue of usage that is not settled yet."""
