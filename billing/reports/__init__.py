"""Usage and cost reports over the hourly sums."""
