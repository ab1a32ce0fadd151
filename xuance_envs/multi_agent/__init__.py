"""Environments with many agents, vectorized.

Everything an environment's agents have travels in one record of bytes, which is all that the vector
environment below knows of them: so they are stepped by every backend, and at its speed.
"""
