"""Tests of serialised values and blobs."""
