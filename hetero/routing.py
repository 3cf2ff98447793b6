"""Several deployments of one model as one: requests are routed by smooth weighted round robin.

Each request raises every route's credit by its share and goes to the route with most credit, which
pays a whole request for it. After any number of requests no route is more than one request away
from its share, and its requests are spread evenly.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from devices.errors import DeviceLostError
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.request.answer import Answer
from devices.request.request import PLAIN, Request
from scheduler.client.record import StoryLine
from scheduler.executor import Deployment, Submission
from scheduler.plan import Plan


class SmoothRoundRobin:
    """Turns for routes with shares.

    `shares`: positive; their ratio is what counts.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        if not shares or any(share <= 0 for share in shares):
            raise ValueError(f"shares {list(shares)}: wanted one or more positive numbers")
        total = sum(shares)
        self._shares = [share / total for share in shares]
        self._credits = [0.0] * len(shares)
        self._lock = threading.Lock()

    def next(self) -> int:
        """Return whose turn it is; of equals, the first."""
        with self._lock:
            for place, share in enumerate(self._shares):
                self._credits[place] += share
            # Sums of shares differ by rounding; what is that near is equal.
            top = max(self._credits) - 1e-9
            turn = next(i for i, credit in enumerate(self._credits) if credit >= top)
            self._credits[turn] -= 1.0
        return turn


class RoutedDeployment:
    """Deployments of the same model that share its requests.

    Stages are numbered through: the first deployment's, then the second's, and so on.

    `shares`: how the requests are shared among them.
    """

    def __init__(self, deployments: Sequence[Deployment], shares: Sequence[float]) -> None:
        #: The deployments, in the order of their shares.
        self.routes = tuple(deployments)
        self._turns = SmoothRoundRobin(shares)
        self._offsets: list[int] = []
        count = 0
        for deployment in self.routes:
            self._offsets.append(count)
            count += deployment.num_stages
        self.num_stages = count

    @property
    def callback_executor(self) -> ThreadPoolExecutor:
        """The first route's: it outlives none of the others."""
        return self.routes[0].callback_executor

    @property
    def plan(self) -> Plan:
        """The first route's plan: ports are the same in all."""
        return self.routes[0].plan

    def submit(self, inputs: Mapping[str, Value], request: Request = PLAIN) -> Submission:
        """Admit a request to the route whose turn it is; see `Deployment.submit`."""
        first = self._turns.next()
        for turn in range(len(self.routes)):
            route = (first + turn) % len(self.routes)
            try:
                made = self.routes[route].submit(inputs, request)
            except DeviceLostError:
                # The other routes may not need the device that is gone.
                if turn + 1 == len(self.routes):
                    raise
            else:
                break
        future = _renumbered(made.future, self._offsets[route])
        request_id = made.request_id * len(self.routes) + route
        return replace(made, request_id=request_id, future=future)

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request so far."""
        inner, route = divmod(request_id, len(self.routes))
        return self.routes[route].story(inner)

    @property
    def imported(self) -> Collection[int]:
        """Stages that a device imported, numbered through."""
        return {
            offset + stage
            for route, offset in zip(self.routes, self._offsets, strict=True)
            for stage in route.imported
        }

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model, stages being numbered through."""
        route, inner = self._find(stage)
        return self.routes[route].executed_nodes(inner)

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it, stages being numbered through."""
        route, inner = self._find(stage)
        return self.routes[route].export(inner)

    def close(self) -> None:
        """Close every route."""
        for deployment in self.routes:
            deployment.close()

    def close_later(self) -> None:
        """Close every route soon, in another thread."""
        for deployment in self.routes:
            deployment.close_later()

    def _find(self, stage: int) -> tuple[int, int]:
        route = max(i for i, offset in enumerate(self._offsets) if offset <= stage)
        return route, stage - self._offsets[route]


def _renumbered(future: Future[Answer], offset: int) -> Future[Answer]:
    """Return a future of the same answer with its stages numbered from `offset`."""
    if not offset:
        return future
    through: Future[Answer] = Future()

    def pass_on(done: Future[Answer]) -> None:
        if error := done.exception():
            through.set_exception(error)
            return
        answer = done.result()
        runs = tuple(run._replace(stage=run.stage + offset) for run in answer.stage_runs)
        through.set_result(replace(answer, stage_runs=runs))

    future.add_done_callback(pass_on)
    return through
