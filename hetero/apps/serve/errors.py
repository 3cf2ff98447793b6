"""What goes wrong with a request, and the statuses that say so in HTTP and gRPC."""

from __future__ import annotations

from typing import Final

from hetero.devices.errors import (
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


#: HTTP status, gRPC's code for the same, and the errors that have it: the first that fits.
_TABLE: Final[tuple[tuple[int, str, tuple[type[HeteroError], ...]], ...]] = (
    (400, "INVALID_ARGUMENT", (TensorError,)),
    (401, "UNAUTHENTICATED", ()),
    (413, "RESOURCE_EXHAUSTED", ()),
    (503, "UNAVAILABLE", (OverloadedError, DeviceLostError)),
    (504, "DEADLINE_EXCEEDED", (DeadlineError,)),
    (499, "CANCELLED", (RequestCancelledError,)),  # nginx's: the client has gone
    (501, "UNIMPLEMENTED", (UnsupportedOperationError,)),
    (404, "NOT_FOUND", (ModelNotFoundError,)),
    (400, "INVALID_ARGUMENT", (ModelError, ArgumentError)),
)
#: HTTP status -> gRPC's code; of others it is INTERNAL.
GRPC_CODES: Final = {status: code for status, code, _ in _TABLE}


def told(error: BaseException) -> tuple[int, str]:
    """Return the HTTP status of an error and what the client is told of it."""
    if isinstance(error, ProtocolError):
        return error.status, f"{error}"
    if isinstance(error, HeteroError):
        return next((row[0] for row in _TABLE if isinstance(error, row[2])), 500), f"{error}"
    return 500, "an error of the server's own"
