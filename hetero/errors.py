"""Every error that hetero raises on purpose, under one root: `HeteroError`."""

from hetero.devices import errors
from hetero.devices.errors import *  # noqa: F403 - all of them, listed there once

__all__ = errors.__all__
