"""Connections, requests and replies."""
