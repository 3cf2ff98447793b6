"""Convolutions that suit only a CPU."""
