"""Usage and cost reports from the hourly rollups."""
