"""What a model's output says: text, reasoning and calls of tools, read from its tokens as they come."""
