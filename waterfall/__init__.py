"""Where the time of each request went, from authentication to settlement. It explains, and bills nothing."""
