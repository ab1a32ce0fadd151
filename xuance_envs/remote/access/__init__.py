"""Access control of a server: tokens, permissions and proxies."""
