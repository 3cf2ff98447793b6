"""Failures: what callers are told of requests that have failed."""

from __future__ import annotations

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
)
from hetero.scheduler.vocabulary import events
from hetero.scheduler.vocabulary.record import RequestRecord


def failed(request: RequestRecord, error: BaseException) -> events.Fail:
    """Return the end of a request; errors of what was lost tell its story."""
    if isinstance(error, DeviceLostError | ClusterError | DeadlineError):
        cause, data = error.__cause__, error.data | {"story": request.lines()}
        error = type(error)(error.message, **data)
        error.__cause__ = cause
    return events.Fail(request.id, error)


def away_text(event: events.DeviceLost | events.DeviceRemoved) -> str:
    """Return why a device is away."""
    return f"device {event.device} on node {event.node} is gone: {event.cause.rstrip('.')}"


def lost_error(
    request: RequestRecord, event: events.DeviceLost | events.DeviceRemoved
) -> DeviceLostError:
    """Return the error of a request whose device is away."""
    todo = "A device whose node is alive is restarted: send the request again."
    if isinstance(event, events.DeviceRemoved):
        todo = "It does not return, and no other route is left: compile the model again."
    return DeviceLostError(
        f"{request.where}: {away_text(event)}. {todo}",
        device=event.device,
        node=event.node,
        attempt=request.attempt,
        request_id=request.id,
    )


def cluster_error(request: RequestRecord, error: ClusterError) -> ClusterError:
    """Return the error of a request whose cluster is gone."""
    return ClusterError(f"{request.where}: {error.message}", **error.data)


def overload(request: RequestRecord, why: str) -> OverloadedError:
    """Return the error of a request for which there is no room."""
    return OverloadedError(
        f"{why}. Wait for answers, have the request wait longer, or raise MAX_REQUESTS_IN_FLIGHT, "
        "MAX_BYTES_IN_FLIGHT, MAX_REQUESTS_WAITING or ADMISSION_TIMEOUT_S.",
        request_id=request.id,
    )


def copied(error: BaseException) -> BaseException:
    """Return an error of a caller's own: each is raised in another thread."""
    if not isinstance(error, HeteroError):
        return error
    made = type(error)(error.message, **error.data)
    made.__cause__ = error.__cause__
    return made
