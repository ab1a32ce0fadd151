"""Vectorized environments in this process, in worker processes and on Ray clusters."""
