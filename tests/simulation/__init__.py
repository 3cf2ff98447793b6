"""Simulated histories of the scheduler, by seeds: `python -m tests.simulation`."""
