"""Measurements of xuance_envs, one question per script: see ``benchmarks/README.md``."""
