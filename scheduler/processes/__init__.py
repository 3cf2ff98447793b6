"""Processes and threads: forks, files owned by a process, process exit."""
