"""Wire formats, one module each: JSON to Generation, and what came of it back to JSON."""
