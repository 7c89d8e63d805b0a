"""The door: puts the rooms together."""
