"""Measurements, run by hand: `python -m tests.benchmarks.NAME`. Nothing here is a test."""
