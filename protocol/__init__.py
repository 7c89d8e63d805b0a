"""The protocol between gateway and replica: the only thing that the gateway imports from the engine."""
