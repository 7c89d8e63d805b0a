"""The replicas as a gateway sees them: who is there, who is well, and the client side of protocol."""
