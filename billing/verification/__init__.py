"""Checking money against itself."""
