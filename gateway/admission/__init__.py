"""May this request run now, and what does it reserve."""
