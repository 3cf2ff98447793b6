"""Tests of the channels between processes."""
