"""Benchmarks of the harness itself."""
