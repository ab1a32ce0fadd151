"""Execution engine of vectorized environments, independent of their public classes."""
