"""Shared code of the benchmarks: options, output, rounds, implementations, records."""
