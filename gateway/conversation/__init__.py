"""From a conversation to token ids and spans, and from token ids back to text."""
