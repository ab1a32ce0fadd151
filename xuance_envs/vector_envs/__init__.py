"""Vectorized environments in this process, in threads, in worker processes and on Ray clusters."""
