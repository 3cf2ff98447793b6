"""Errors and messages of failed requests."""

from __future__ import annotations

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
)
from hetero.scheduler.types import events
from hetero.scheduler.types.request_record import RequestRecord


def failure_event(request: RequestRecord, error: BaseException) -> events.Fail:
    """Return the failure of a request; errors of losses and deadlines carry its history."""
    if isinstance(error, DeviceLostError | ClusterError | DeadlineError):
        cause, data = error.__cause__, error.data | {"story": request.lines()}
        error = type(error)(error.message, **data)
        error.__cause__ = cause
    return events.Fail(request.id, error)


def away_text(event: events.DeviceLost | events.DeviceRemoved) -> str:
    """Return the reason why a device is unavailable."""
    return f"device {event.device} on node {event.node} is gone: {event.cause.rstrip('.')}"


def lost_error(
    request: RequestRecord, event: events.DeviceLost | events.DeviceRemoved
) -> DeviceLostError:
    """Return the error of a request whose device is unavailable."""
    advice = "A device whose node is alive is restarted: send the request again."
    if isinstance(event, events.DeviceRemoved):
        advice = "It does not return, and no other route is left: compile the model again."
    return DeviceLostError(
        f"{request.where}: {away_text(event)}. {advice}",
        device=event.device,
        node=event.node,
        attempt=request.attempt,
        request_id=request.id,
    )


def cluster_error(request: RequestRecord, error: ClusterError) -> ClusterError:
    """Return the error of a request whose cluster was lost."""
    return ClusterError(f"{request.where}: {error.message}", **error.data)


def overload(request: RequestRecord, why: str) -> OverloadedError:
    """Return the error of a request that admission rejects."""
    return OverloadedError(
        f"{why}. Wait for results before sending more, or raise MAX_REQUESTS_IN_FLIGHT, "
        "MAX_BYTES_IN_FLIGHT, MAX_REQUESTS_WAITING or ADMISSION_TIMEOUT_S.",
        request_id=request.id,
    )


def copy_error(error: BaseException) -> BaseException:
    """Copy an error, because each caller raises its copy in a thread of its own."""
    if not isinstance(error, HeteroError):
        return error
    copy = type(error)(error.message, **error.data)
    copy.__cause__ = error.__cause__
    return copy
