"""The request record, which accompanies a request from its caller to each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.errors import ArgumentTypeError

#: Creates a named tuple without the call of a Python function.
_new: Final[Callable[..., Request]] = tuple.__new__


class Request(NamedTuple):
    """Options and identity of a request.

    Attributes
    ----------
    timeout_s : float or None
        Seconds until the deadline, including the wait for admission. None selects the deployment's
        ``REQUEST_TIMEOUT_S``.
    profile : bool
        Whether stages time their nodes, even without ``PERF_COUNT``.
    waits : bool or None
        Whether the caller's thread waits for admission and for unavailable devices. If False, the
        request is rejected instead. If None, the request is queued and the caller continues.
    inline : bool or None
        Whether the caller only waits, so that its thread may run stages. If None, the caller
        continues, and its thread runs only requests that are faster than a switch to another
        thread.
    deployment, id, attempt, route : str and int
        Identity of the request, assigned at admission: its deployment and number, the number of
        the attempt, and the attempt's route in the deployment.
    priority : int
        Among waiting requests, a greater priority is admitted first.
    trace : str
        W3C ``traceparent`` of the request, for its history; not sent to devices.
    restore_s : float
        Maximum seconds for the recomputation of states after a device loss. Devices keep the
        tensors that they send for this purpose. 0 disables recomputation.
    resident_outputs : tuple of str
        Outputs that stay on the device that computes them.
    resident_copies : tuple of str
        Outputs that stay on the device and are also returned.
    """

    timeout_s: float | None = None
    profile: bool = False
    waits: bool | None = True
    inline: bool | None = False
    deployment: str = ""
    id: int = 0
    attempt: int = 0
    route: int = 0
    priority: int = 0
    trace: str = ""
    restore_s: float = 0.0
    resident_outputs: tuple[str, ...] = ()
    resident_copies: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether devices only have to run its stages, in the usual order."""
        return not (
            self.profile
            or self.resident_outputs
            or self.resident_copies
            or self.restore_s
            or self.priority
        )

    @property
    def has_resident_tensors(self) -> bool:
        """Whether devices keep tensors of the request after its run."""
        return bool(self.resident_outputs or self.resident_copies or self.restore_s)

    def for_attempt(self, deployment: str, number: int, attempt: int, route: int) -> Request:
        """Return the record for one attempt."""
        return _new(
            Request,
            (
                self.timeout_s,
                self.profile,
                self.waits,
                bool(self.inline),
                deployment,
                number,
                attempt,
                route,
                self.priority,
                "",
                self.restore_s,
                self.resident_outputs,
                self.resident_copies,
            ),
        )


def check_priority(priority: object) -> int:
    """Return the priority of a request; raise ArgumentTypeError if it is not an integer."""
    if not isinstance(priority, int | np.integer):
        raise ArgumentTypeError(f"priority: expected an integer, got {priority!r}.")
    return int(priority)


#: A request with default options.
DEFAULT_REQUEST = Request()
#: The request of each run without options: one object for runs whose caller only waits, and one for
#: the others. Targets recognize it by identity, instead of checking all options in each run.
INLINE_REQUEST: Final = DEFAULT_REQUEST._replace(inline=True)
QUICK_REQUEST: Final = DEFAULT_REQUEST._replace(inline=None)
#: Route of a single stage that recomputes a lost state: it returns resident tensors to its client,
#: and sends no outputs to other stages.
REPLAY = -1
