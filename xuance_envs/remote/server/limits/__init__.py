"""Limits on the resources of names and sessions."""
