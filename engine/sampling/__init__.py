"""Sampling: from logits to tokens, log probabilities, and the checks of sampling parameters."""
