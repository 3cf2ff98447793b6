"""What goes wrong with a request, and the status that says so in HTTP."""

from __future__ import annotations

from typing import Final

from devices.errors import (
    ArgumentError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    ModelError,
    ModelNotFoundError,
    OverloadedError,
    RequestCancelledError,
    TensorError,
    UnsupportedOperationError,
)


class ProtocolError(HeteroError, ValueError):
    """A request that the protocol does not allow, or that asks for what is not here.

    Attributes
    ----------
    status : int
        The HTTP status that says so.
    """

    status: int


def refused(message: str, status: int = 400) -> ProtocolError:
    """Return the error of a request that cannot be answered."""
    return ProtocolError(message, status=status)


#: Error -> HTTP status, the first that fits; all others are the server's own.
_STATUSES: Final[tuple[tuple[type[HeteroError], int], ...]] = (
    (TensorError, 400),
    (OverloadedError, 503),
    (DeviceLostError, 503),
    (DeadlineError, 504),
    (RequestCancelledError, 499),  # nginx's: the client has gone
    (UnsupportedOperationError, 501),
    (ModelNotFoundError, 404),
    (ModelError, 400),
    (ArgumentError, 400),
)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ProtocolError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
