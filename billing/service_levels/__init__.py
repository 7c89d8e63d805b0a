"""How long requests waited, and how they ended: histograms by hour, counted beside the requests."""
