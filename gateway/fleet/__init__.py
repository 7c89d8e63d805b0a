"""The replicas as a gateway worker sees them: their health, and the client side of the protocol."""
