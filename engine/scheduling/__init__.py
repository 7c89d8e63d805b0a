"""Which tokens the next step computes. No clock, no I/O, no tensors: a simulator can drive it."""
