"""Who may do what: tokens, permissions, and proxies in front of the server."""
