"""Access control: tokens, permissions, and proxies in front of the server."""
