"""The request record: what travels with a request from its caller to each device."""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """A request on its way.

    Attributes
    ----------
    timeout_s : float or None
        Seconds until the answer must be there, waiting for admission included; None leaves it to
        the deployment's ``REQUEST_TIMEOUT_S``.
    profile : bool
        Whether stages time their nodes, also on devices without ``PERF_COUNT``.
    waits : bool or None
        Whether its caller waits for room, and for devices that are away; else the request is
        refused where there is none. None: the request waits for room while its caller goes on, and
        who makes room starts it.
    inline : bool or None
        Whether its caller does nothing but wait, so that its thread may run stages. None: the
        caller goes on, so its thread runs only a request that takes less than waking another.
    deployment, id, attempt, route : str and int
        Whose request it is, given when it is admitted; which attempt at it, and which of the
        deployment's ways the attempt takes.
    priority : int
        Of requests that wait for the same, those of greater priority go first.
    trace : str
        The trace that it is a part of (W3C's ``traceparent``), for its story; devices have none.
    restore_s : float
        Seconds of stages' runs that may be spent to have its states back, should a device be lost
        with them: devices keep for that what they send to others. 0: nothing is kept.
    keep : tuple of str
        Outputs that stay in the process of the device that makes them.
    keep_copies : tuple of str
        Those that stay there and are answered as well.
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
    keep: tuple[str, ...] = ()
    keep_copies: tuple[str, ...] = ()

    @property
    def keeps_something(self) -> bool:
        """Whether devices keep something of it once it has run."""
        return bool(self.keep or self.keep_copies or self.restore_s)

    def admitted(self, deployment: str, number: int, attempt: int, route: int) -> Request:
        """Return it as what an attempt sends."""
        return self._replace(
            deployment=deployment,
            id=number,
            attempt=attempt,
            route=route,
            trace="",
            inline=bool(self.inline),
        )


#: What a caller that asks for nothing sends.
DEFAULT_REQUEST = Request()
#: The route of a stage that runs again, alone: it gives its client what is kept, others nothing.
REPLAY = -1
