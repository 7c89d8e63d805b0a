"""The processes of a deployment, and how `serve` keeps them running."""
