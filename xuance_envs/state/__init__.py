"""Saving environments as bytes and restoring them in other environments of the same kind."""
