"""Connections, requests, quotas and worker processes of a server."""
