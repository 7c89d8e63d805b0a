"""Settings, the data folder and its secrets."""
