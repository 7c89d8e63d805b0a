"""Bills and ends requests whose gateway or replica died: usage from journals, orphaned holds, lost attempts."""
