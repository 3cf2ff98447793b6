"""Tests of plans, placements and device names."""
