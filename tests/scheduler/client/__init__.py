"""Tests of the client side of the scheduler."""
