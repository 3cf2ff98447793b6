"""Routing: chooses the route on which an attempt is expected to finish first. No I/O.

The policy is weighted fair queueing. Each choice adds to every live route's credit according to
its share; the chosen route pays one request. A request is expected to finish after the requests
that run on its route, and not before the route's turn by its share. Under low load, requests are
therefore spread in proportion to the shares (equal routes take turns). A route on which requests
accumulate is skipped until it has caught up.

The plan's shares predict the speeds of the routes. A slow link or a busy node makes a route slower
than predicted. Its measured speed then takes the place of its planned share, and small shares still
get some requests, so that a route that recovers is noticed.

Credits are not stored: they follow from a virtual time that advances with each choice. A heap
yields the next route. Because time can only postpone a route, a stale heap entry is too early; it
is corrected when it reaches the top.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hetero.scheduler.types.events import DeviceLost, DeviceRemoved
from hetero.scheduler.types.placement import Route

#: Attempts over which a route's seconds per request are measured. Of two successive measurements
#: the lower one counts, as the first runs on a device and short stalls take longer than others.
_NUM_MEASURED: Final = 8
#: Least speed, relative to the fastest route, at which the planned share is kept. Predictions are
#: often off by a third.
_LEAST_SPEED: Final = 2 / 3
#: Change of the fastest route's speed from which the shares of all routes are corrected.
_LEAST_CHANGE: Final = 1.1


@dataclass(slots=True)
class Pace:
    """Measured seconds per request of a route, without the time in which the route is idle."""

    #: Seconds per request; None until two measurements are complete.
    seconds: float | None = None
    _previous_s: float | None = None
    #: Sums of the present measurement: seconds with running attempts, and seconds of all attempts.
    _busy_s: float = 0.0
    _total_s: float = 0.0
    _num_completed: int = 0
    #: Time up to which the sums are complete.
    _until_s: float = 0.0

    def pass_time(self, now_s: float, num_running: int) -> None:
        """Add the seconds since the last call, in which `num_running` attempts were running."""
        if num_running and now_s > self._until_s:
            self._busy_s += now_s - self._until_s
            self._total_s += (now_s - self._until_s) * num_running
        self._until_s = now_s

    def complete(self, num_stages: int) -> bool:
        """Count a completed attempt; return whether `seconds` has changed.

        A pipeline of s stages with n requests at a time completes a request in the time of
        n + s - 1 runs of a stage.
        """
        self._num_completed += 1
        if self._num_completed < _NUM_MEASURED or not self._busy_s:
            return False
        latency_s, num_at_a_time = self._total_s / self._num_completed, self._total_s / self._busy_s
        measured_s = latency_s / (num_at_a_time + max(num_stages, 1) - 1)
        if self._previous_s is not None:
            self.seconds = min(measured_s, self._previous_s)
        self._previous_s = measured_s
        self._busy_s = self._total_s = 0.0
        self._num_completed = 0
        return self.seconds is not None


def share_by_speed(planned_share: float, speed: float | None, fastest: float) -> float:
    """Return a route's planned share, lowered if the route is slower than the plan predicts.

    `speed`: measured requests per second, divided by the planned share; None if it is unknown.
    `fastest`: the largest speed of the routes.
    """
    if speed is None or speed >= _LEAST_SPEED * fastest:
        return planned_share
    return planned_share * speed / fastest


@dataclass(slots=True)
class _RouteState:
    devices: frozenset[str]
    planned_share: float
    #: Numbers of stage runs and model outputs that complete an attempt.
    num_stages: int
    num_outputs: int
    #: Virtual time of the route's next turn; the credit is the virtual time passed since.
    turn: float
    pace: Pace
    #: Planned or measured share.
    share: float
    num_running: int = 0
    #: Key of its current heap entry.
    due: float = 0.0

    @property
    def speed(self) -> float | None:
        """Measured requests per second, divided by the planned share; None if it is unknown."""
        seconds = self.pace.seconds
        return None if seconds is None else 1 / (self.planned_share * seconds)

    def due_at(self, now: float) -> float:
        """Return the virtual finish time of a request; the credit is limited to one request."""
        # Sums of shares differ by rounding errors; times that close count as equal.
        turn = max(self.turn, now - 1 / self.share)
        return round(turn + (1 + self.num_running) / self.share, 9)


class Routes:
    """Routes of a deployment: the attempts on each, and the unavailable devices."""

    def __init__(self, routes: Sequence[Route]) -> None:
        #: The routes by number.
        self.states: list[_RouteState] = []
        #: Unavailable devices with the event of the loss, oldest first.
        self._losses: dict[str, DeviceLost | DeviceRemoved] = {}
        #: Devices that have returned and may soon fail again.
        self._unsteady: set[str] = set()
        #: The fastest route and its speed, when the shares of all routes were corrected last.
        self._fastest_route: int | None = None
        self._fastest = 0.0
        #: Virtual time: one request over all live routes advances it by one.
        self._now = 0.0
        self.add(routes)

    def add(self, routes: Sequence[Route]) -> None:
        """Append routes, numbered after the present ones."""
        for route in routes:
            plan = route.plan
            tensor_names = {name for stage in plan.stages for name in stage.outputs}
            num_outputs = len(tensor_names.intersection(plan.output_names)) if route.stages else 0
            devices, num_stages = frozenset(plan.devices), len(route.stages)
            state = _RouteState(
                devices, route.share, num_stages, num_outputs, self._now, Pace(), route.share
            )
            self.states.append(state)
        self.count = len(self.states)
        self.rebuild_heap()

    def mark_lost(self, event: DeviceLost | DeviceRemoved) -> None:
        """Mark a device as unavailable."""
        self._losses[event.device] = event
        self._unsteady.discard(event.device)
        self.rebuild_heap()

    def mark_available(self, device: str, *, is_steady: bool = True) -> None:
        """Mark a device as available; an unsteady one is used only if no other route is live."""
        self._losses.pop(device, None)
        if not is_steady:
            self._unsteady.add(device)
        self.rebuild_heap()

    def mark_steady(self, device: str) -> None:
        """Mark a device as steady."""
        self._unsteady.discard(device)
        self.rebuild_heap()

    def recount(self, routes: Iterable[int]) -> None:
        """Count the running attempts again; `routes`: the route of each."""
        counts = Counter(routes)
        for number, state in enumerate(self.states):
            state.num_running = counts[number]
        self.rebuild_heap()

    def rebuild_heap(self) -> None:
        """Rebuild the heap of live routes."""
        losses, states = self._losses.keys(), enumerate(self.states)
        live = {number: state for number, state in states if losses.isdisjoint(state.devices)}
        steady = {n: state for n, state in live.items() if self._unsteady.isdisjoint(state.devices)}
        #: Routes whose devices are all available, by number; only steady ones if there are any.
        self.live = steady or live
        self._share = sum(state.share for state in self.live.values())
        self._heap: list[tuple[float, int]] = []
        for number in self.live:
            self._push_route(number)

    def _push_route(self, number: int) -> None:
        state = self.states[number]
        state.due = state.due_at(self._now)
        heapq.heappush(self._heap, (state.due, number))

    def uses(self, route: int, device: str) -> bool:
        """Return whether a route uses a device."""
        return device in self.states[route].devices

    def begin(self, route: int, now_s: float) -> None:
        """Add an attempt to a route."""
        self.pass_time(route, now_s)
        self.states[route].num_running += 1

    def end(self, route: int, completed_s: float | None = None) -> None:
        """Remove an attempt from a route; `completed_s`: the time at which it was completed."""
        if completed_s is not None:
            self.pass_time(route, completed_s)
        self.states[route].num_running -= 1
        if completed_s is not None:
            self.count_completed(route)
        self.advance(route)

    def pass_time(self, route: int, now_s: float) -> None:
        """Measure the time that a route's attempts have taken until now."""
        if self.count > 1:
            state = self.states[route]
            state.pace.pass_time(now_s, state.num_running)

    def count_completed(self, route: int) -> None:
        """Count a completed attempt, and correct the shares after a measurement."""
        state = self.states[route]
        if self.count == 1 or not state.pace.complete(state.num_stages):
            return
        speed = state.speed
        assert speed is not None
        is_slower = route == self._fastest_route and speed * _LEAST_CHANGE < self._fastest
        if is_slower or speed > self._fastest * _LEAST_CHANGE:
            speeds = {n: s.speed for n, s in enumerate(self.states) if s.speed is not None}
            self._fastest_route = max(speeds, key=speeds.__getitem__)
            self._fastest = speeds[self._fastest_route]
            for other in self.states:
                self._correct_share(other)
            self.rebuild_heap()
        elif (change := self._correct_share(state)) and route in self.live:
            self._share += change
            self._push_route(route)

    def _correct_share(self, state: _RouteState) -> float:
        """Correct a route's share by its speed; return the change."""
        before = state.share
        state.share = share_by_speed(state.planned_share, state.speed, self._fastest)
        state.turn = min(state.turn, self._now + 1 / state.share)
        return state.share - before

    def advance(self, route: int) -> None:
        """Move a route forward in the heap, if the end of an attempt makes it due earlier."""
        state = self.states[route]
        if self.count > 1 and route in self.live and state.due_at(self._now) < state.due:
            self._push_route(route)

    def is_whole(self, route: int, num_runs: int, num_outputs: int) -> bool:
        """Return whether the numbers of runs and outputs complete an attempt on a route."""
        state = self.states[route]
        return num_runs >= state.num_stages and num_outputs >= state.num_outputs

    def is_any_live(self, exclusions: Collection[int] = ()) -> bool:
        """Return whether any route except `exclusions` is live."""
        return any(number not in exclusions for number in self.live)

    def may_become_live(self, exclusions: Collection[int] = ()) -> bool:
        """Return whether any route except `exclusions` has no permanently removed device."""
        removed_devices = {
            d for d, event in self._losses.items() if isinstance(event, DeviceRemoved)
        }
        return any(
            number not in exclusions and removed_devices.isdisjoint(state.devices)
            for number, state in enumerate(self.states)
        )

    def unavailability(self) -> DeviceLost | DeviceRemoved | None:
        """Return the event that leaves no live route, preferably a removal; None if one is live."""
        if self.live:
            return None
        needed = {device for state in self.states for device in state.devices}
        causes = [event for device, event in self._losses.items() if device in needed]
        return next((e for e in causes if isinstance(e, DeviceRemoved)), causes[0])

    def choose(
        self, exclusions: Collection[int] = (), preferred_devices: frozenset[str] = frozenset()
    ) -> int | None:
        """Choose the next live route except `exclusions`; None if there is none.

        `preferred_devices`: devices that hold inputs; the route should use them, and few others.
        """
        if not self.live or (exclusions and not self.is_any_live(exclusions)):
            return None
        if self.count == 1:
            return 0
        self._now += 1 / self._share
        number = (
            self._choose_nearest(exclusions, preferred_devices)
            if preferred_devices
            else self._choose_first(exclusions)
        )
        state = self.states[number]
        # The route pays one request, and its debt is at most one request.
        state.turn = min(max(state.turn + 1 / state.share, self._now), self._now + 1 / state.share)
        self._push_route(number)
        return number

    def _choose_first(self, exclusions: Collection[int]) -> int:
        skipped: list[int] = []
        while True:
            due, number = heapq.heappop(self._heap)
            state = self.states[number]
            if due != state.due:
                continue  # a newer entry of this route exists
            if number in exclusions:
                skipped.append(number)
            elif state.due_at(self._now) > due:
                self._push_route(number)
            else:
                break
        for other in skipped:
            self._push_route(other)
        return number

    def _choose_nearest(
        self, exclusions: Collection[int], preferred_devices: frozenset[str]
    ) -> int:
        def rank(number: int) -> tuple[int, int, float, int]:
            state = self.states[number]
            num_missing, num_other = (
                len(preferred_devices - state.devices),
                len(state.devices - preferred_devices),
            )
            return num_missing, num_other, state.due_at(self._now), number

        return min((number for number in self.live if number not in exclusions), key=rank)
