"""Limits on what names and sessions may use."""
