"""Where the time of each request went, and which requests were refused. It explains, and bills nothing."""
