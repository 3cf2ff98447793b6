"""Errors of requests, and their statuses in HTTP and gRPC."""

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
    """A request that the protocol or the server's options do not allow.

    Attributes
    ----------
    status : int
        The HTTP status of the response.
    """

    status: int


def protocol_error(message: str, status: int = 400) -> ProtocolError:
    """Return the error of a request that is refused."""
    return ProtocolError(message, status=status)


#: HTTP status, gRPC's code, and the errors that have them; the first match counts.
_TABLE: Final[tuple[tuple[int, str, tuple[type[HeteroError], ...]], ...]] = (
    (400, "INVALID_ARGUMENT", (TensorError,)),
    (401, "UNAUTHENTICATED", ()),
    (403, "PERMISSION_DENIED", ()),
    (408, "DEADLINE_EXCEEDED", ()),
    (413, "RESOURCE_EXHAUSTED", ()),
    (503, "UNAVAILABLE", (OverloadedError, DeviceLostError)),
    (504, "DEADLINE_EXCEEDED", (DeadlineError,)),
    (499, "CANCELLED", (RequestCancelledError,)),  # nginx's status of a client that disconnected
    (501, "UNIMPLEMENTED", (UnsupportedOperationError,)),
    (404, "NOT_FOUND", (ModelNotFoundError,)),
    (400, "INVALID_ARGUMENT", (ModelError, ArgumentError)),
)
#: HTTP status -> gRPC's code; INTERNAL for the others.
GRPC_CODES: Final = {status: code for status, code, _ in _TABLE}


def describe_error(error: BaseException) -> tuple[int, str]:
    """Return the HTTP status of an error and the message for the client."""
    if isinstance(error, ProtocolError):
        return error.status, f"{error}"
    if isinstance(error, HeteroError):
        return next((row[0] for row in _TABLE if isinstance(error, row[2])), 500), f"{error}"
    return 500, "internal error; the server's log has the traceback"
