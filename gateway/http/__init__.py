"""HTTP on connections: protocol, limits, authentication, server-sent events, error responses."""
