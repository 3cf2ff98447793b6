"""Processes: forks, files that go with their owner, and an end that skips what nobody needs."""
