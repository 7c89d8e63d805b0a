"""Measurements. Each figure in the docs names the command here that it comes from; each command takes `--json OUT`."""
