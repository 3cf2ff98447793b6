"""Convolutions that suit only a CPU: their kernel is in `FAST`."""

from devices.cpu.fast.conv import FAST

__all__ = ["FAST"]
