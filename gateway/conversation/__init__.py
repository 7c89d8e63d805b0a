"""Chat templates and tokenizers: conversations to token ids and spans, and token ids back to text."""
