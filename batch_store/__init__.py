"""Batches of requests: which lines they have, who runs them, what came of each line, until their results are files."""
