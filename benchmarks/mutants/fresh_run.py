"""New pytest process that runs the tests named on standard input until one fails."""

from __future__ import annotations

import sys

import pytest

from benchmarks.mutants.session import pytest_options

if __name__ == "__main__":
    sys.exit(pytest.main([*pytest_options(), "-x", *sys.stdin.read().splitlines()]))
