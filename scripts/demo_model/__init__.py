"""Builds the demo model: corpus, conversations, tokenizer, network, training, evaluation, folder."""
