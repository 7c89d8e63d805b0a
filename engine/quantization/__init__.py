"""Weights stored in few bits, read as they come. On the CPU they are computed with in the model's own type."""
