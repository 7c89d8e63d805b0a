"""What is left of requests whose gateway or replica died: usage from journals, holds, lost attempts."""
