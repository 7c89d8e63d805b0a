"""Commands that call operations of /admin/v1, in this process or at a gateway elsewhere."""
