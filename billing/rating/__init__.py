"""Rating: a period's usage and a contract's terms, made into lines that add up exactly."""
