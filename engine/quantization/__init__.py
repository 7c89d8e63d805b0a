"""Formats of quantized weights: reading, decoding and making them. Computation is in the model's own type."""
