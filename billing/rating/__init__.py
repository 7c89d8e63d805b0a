"""Rating: from a period's usage, storage and contract terms to lines that add up exactly."""
