"""Changes that take two people: what waits, and what is made when another person approves."""
