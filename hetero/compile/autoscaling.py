"""Autoscaling of replicas between bounds by the number of ongoing requests, as in Ray Serve.

`ScalingPolicy` decides, from numbers and times alone. `Autoscaler` starts and stops replicas and
routes requests to the replica with the fewest.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.scheduler.executor import Deployment, Submission

_log = logging.getLogger(__name__)

#: Seconds between two looks at the number of ongoing requests.
_PERIOD_S: Final = 0.25
#: Seconds after a failed start until the next one.
_RETRY_S: Final = 10.0


@dataclass
class ScalingPolicy:
    """Number of replicas that a load needs, with delays against short changes.

    Attributes
    ----------
    minimum, maximum : int
        The bounds.
    requests_per_replica : float
        Ongoing requests that keep one replica busy.
    up_delay_s, down_delay_s : float
        Seconds that more, or fewer, replicas have to be needed. Ray Serve's defaults are 30 and
        600; here a replica starts on a running device, in seconds.
    """

    minimum: int
    maximum: int
    requests_per_replica: float
    up_delay_s: float = 1.0
    down_delay_s: float = 10.0
    #: Since when more, or fewer, replicas are needed, and the least change since then.
    _since_s: float | None = field(default=None, init=False)
    _is_upward: bool = field(default=False, init=False)
    _target: int = field(default=0, init=False)

    def decide(self, now_s: float, num_requests: int, num_replicas: int) -> int:
        """Return the number of replicas to have now."""
        needed = math.ceil(num_requests / self.requests_per_replica)
        needed = min(max(needed, self.minimum), self.maximum)
        if needed == num_replicas:
            self._since_s = None
            return num_replicas
        is_upward = needed > num_replicas
        if self._since_s is None or is_upward != self._is_upward:
            self._since_s, self._is_upward, self._target = now_s, is_upward, needed
        # The least number needed during the delay upward, the largest downward.
        self._target = (min if is_upward else max)(self._target, needed)
        delay_s = self.up_delay_s if is_upward else self.down_delay_s
        if now_s - self._since_s < delay_s:
            return num_replicas
        self._since_s = None
        return self._target


class _Replica:
    """A deployment and the number of its ongoing requests."""

    def __init__(self, deployment: Deployment, weight: int) -> None:
        self.deployment = deployment
        self.weight = weight
        self.num_requests = 0


class Autoscaler:
    """Replicas of a deployed model, started and stopped by a thread.

    Parameters
    ----------
    base : Deployment
        The deployment of the least number of replicas; it is never stopped.
    start_replica : callable
        Deploys the replica of a number, counted from the least number of replicas.
    policy : ScalingPolicy
        Decides the number of replicas.
    """

    def __init__(
        self, base: Deployment, start_replica: Callable[[int], Deployment], policy: ScalingPolicy
    ) -> None:
        self.policy: Final = policy
        self._start_replica = start_replica
        self._replicas = [_Replica(base, policy.minimum)]
        #: (time by the monotonic clock, number of replicas), at the start and after each change.
        self.history: Final = [(time.monotonic(), policy.minimum)]
        self._retry_s = 0.0
        self._lock = threading.Lock()
        #: Notified when a request ends.
        self._ended = threading.Condition(self._lock)
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def deployments(self) -> list[Deployment]:
        """The present deployments."""
        with self._lock:
            return [replica.deployment for replica in self._replicas]

    @property
    def num_replicas(self) -> int:
        """The present number of replicas."""
        with self._lock:
            return self._count()

    @property
    def num_requests(self) -> int:
        """The number of ongoing requests, which run or wait."""
        with self._lock:
            return sum(replica.num_requests for replica in self._replicas)

    def submit(
        self, values: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission:
        """Start a request on the replica with the fewest ongoing requests."""
        with self._lock:
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(
                    target=self._scale_until_closed, name="autoscaler", daemon=True
                )
                self._thread.start()
            replica = min(self._replicas, key=lambda r: r.num_requests / r.weight)
            replica.num_requests += 1
        try:
            submission = replica.deployment.submit(values, request)
        except BaseException:
            self._end(replica)
            raise
        if isinstance(submission, CompletedSubmission):
            self._end(replica)
        else:
            submission.future.add_done_callback(lambda _: self._end(replica))
        return submission

    def close(self) -> None:
        """Stop scaling, and close all replicas except the first deployment."""
        self._is_closed.set()
        with self._lock:
            replicas, self._replicas = self._replicas[1:], self._replicas[:1]
        for replica in replicas:
            replica.deployment.close()

    def close_later(self) -> None:
        """Stop scaling, and close the replicas in other threads; for finalizers."""
        self._is_closed.set()
        for replica in self._replicas[1:]:
            replica.deployment.close_later()

    def scale(self, now_s: float) -> None:
        """Look at the load once; start or stop replicas if the policy decides so."""
        current = self.num_replicas
        target = self.policy.decide(now_s, self.num_requests, current)
        if target > current and now_s >= self._retry_s:
            for number in range(current, target):
                if not self._start(number, now_s):
                    break
        for _ in range(current - target):
            self._stop_last()

    def _scale_until_closed(self) -> None:
        while not self._is_closed.wait(_PERIOD_S):
            self.scale(time.monotonic())

    def _start(self, number: int, now_s: float) -> bool:
        """Start a replica; return whether that succeeded."""
        try:
            deployment = self._start_replica(number - self.policy.minimum)
        except HeteroError as error:
            _log.warning("replica %d did not start: %s", number, error)
            self._retry_s = now_s + _RETRY_S
            return False
        with self._lock:
            is_open = not self._is_closed.is_set()
            if is_open:
                self._replicas.append(_Replica(deployment, 1))
                self._record()
        if not is_open:
            deployment.close()
        return is_open

    def _stop_last(self) -> None:
        """Stop the last replica after its requests have ended; new requests go elsewhere."""
        with self._lock:
            if len(self._replicas) == 1:
                return
            replica = self._replicas.pop()
            self._record()
            while replica.num_requests and not self._is_closed.is_set():
                self._ended.wait(_PERIOD_S)
        replica.deployment.close()

    def _end(self, replica: _Replica) -> None:
        with self._lock:
            replica.num_requests -= 1
            self._ended.notify_all()

    def _count(self) -> int:
        return sum(replica.weight for replica in self._replicas)

    def _record(self) -> None:
        self.history.append((time.monotonic(), self._count()))
        _log.info("replicas: %d", self._count())
