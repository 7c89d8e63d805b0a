"""OpenAI's requests, responses and errors."""
