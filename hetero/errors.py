"""Every error that hetero raises on purpose, under one root: `HeteroError`."""

from devices import errors
from devices.errors import *  # noqa: F403 - all of them, listed there once

__all__ = errors.__all__
