"""Benchmarks of xuance_envs, one question per script. See ``benchmarks/README.md``."""
