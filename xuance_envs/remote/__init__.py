"""Environments behind HTTP: a server that hosts them for many users, and its clients."""
