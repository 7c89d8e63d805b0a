"""The settings, where they come from, the data folder and the secrets: light to import, since every process does."""
