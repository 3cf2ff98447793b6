"""Tests of the device side of the scheduler."""
