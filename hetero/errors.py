"""Public error classes of hetero; their base class is `HeteroError`."""

from hetero.devices import errors
from hetero.devices.errors import *  # noqa: F403 - all of them, listed there once

__all__ = errors.__all__
