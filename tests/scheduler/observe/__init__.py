"""Tests of observers and metrics."""
