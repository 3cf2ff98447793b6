"""The scheduler in simulated worlds, by seeds: `python -m tests.simulation`."""
