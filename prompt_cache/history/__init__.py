"""What earlier requests of a project looked like to the cache, and why a request read less than it could have."""
