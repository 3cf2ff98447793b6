"""Which route an attempt takes: the one that is expected to have it done first. Pure.

Each choice raises every live route's credit by its share, and the chosen one pays a whole request.
A request is expected to be done when what runs on its route is, and its own turn has come by the
shares. So while little runs, requests are spread as evenly as whole requests can be (of equal
routes, in turn); and a route on which requests pile up is passed by until it has caught up.

Credits are not raised one by one: they follow from a time that passes with each choice, in which
each route has its turn. The next route is the first of a heap; as time alone can put one off,
a place in it that is out of date is too early, and is mended when it comes up.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hetero.scheduler.vocabulary.events import DeviceLost, DeviceRemoved
from hetero.scheduler.vocabulary.placement import Route


@dataclass(slots=True)
class _Way:
    devices: frozenset[str]
    share: float
    #: How many stages' runs, and outputs of the model, make an answer whole.
    num_stages: int
    num_outputs: int
    #: When its turn is: what it has earned by its share since, and not been given, is its credit.
    turn: float
    num_running: int = 0
    #: Its place in the heap.
    due: float = 0.0

    def due_at(self, now: float) -> float:
        """Return when a request would be done; its credit is one request at most."""
        # Sums of shares differ by rounding; what is that near is equal.
        turn = max(self.turn, now - 1 / self.share)
        return round(turn + (1 + self.num_running) / self.share, 9)


class Routes:
    """A deployment's routes: what runs on each, and which devices are away."""

    def __init__(self, routes: Sequence[Route]) -> None:
        #: By number.
        self.ways: list[_Way] = []
        #: Why a device is away, the first to go first.
        self._away: dict[str, DeviceLost | DeviceRemoved] = {}
        #: Devices that are back, and may soon be away again.
        self._unsteady: set[str] = set()
        #: Passes by one request of all live routes together.
        self._now = 0.0
        self.add(routes)

    def add(self, routes: Sequence[Route]) -> None:
        """Add routes, numbered after those that are there."""
        for route in routes:
            plan = route.plan
            made = {name for stage in plan.stages for name in stage.outputs}
            num_outputs = len(made.intersection(plan.output_names)) if route.stages else 0
            devices, num_stages = frozenset(plan.devices), len(route.stages)
            self.ways.append(_Way(devices, route.share, num_stages, num_outputs, self._now))
        self.count = len(self.ways)
        self.lay_out()

    def lose(self, event: DeviceLost | DeviceRemoved) -> None:
        """Take note that a device is away."""
        self._away[event.device] = event
        self._unsteady.discard(event.device)
        self.lay_out()

    def regain(self, device: str, *, is_steady: bool = True) -> None:
        """Take note that a device is back; one that is not steady is used where it must be."""
        self._away.pop(device, None)
        if not is_steady:
            self._unsteady.add(device)
        self.lay_out()

    def trust(self, device: str) -> None:
        """Take note that a device, if it is back, is steady."""
        self._unsteady.discard(device)
        self.lay_out()

    def lay_out(self) -> None:
        """Put the routes that have all their devices in order."""
        away, ways = self._away.keys(), enumerate(self.ways)
        live = {number: way for number, way in ways if away.isdisjoint(way.devices)}
        steady = {n: way for n, way in live.items() if self._unsteady.isdisjoint(way.devices)}
        #: Those that have them all, by number; where any has steady ones alone, only such.
        self.live = steady or live
        self._share = sum(way.share for way in self.live.values())
        self._heap: list[tuple[float, int]] = []
        for number in self.live:
            self._put(number)

    def _put(self, number: int) -> None:
        way = self.ways[number]
        way.due = way.due_at(self._now)
        heapq.heappush(self._heap, (way.due, number))

    def uses(self, route: int, device: str) -> bool:
        """Whether a route needs a device."""
        return device in self.ways[route].devices

    def begin(self, route: int) -> None:
        """Count an attempt on a route."""
        self.ways[route].num_running += 1

    def end(self, route: int) -> None:
        """Count it no longer."""
        self.ways[route].num_running -= 1
        self.advance(route)

    def advance(self, route: int) -> None:
        """Have a route on which an attempt has ended come up sooner, if it is due sooner."""
        way = self.ways[route]
        if self.count > 1 and route in self.live and way.due_at(self._now) < way.due:
            self._put(route)

    def is_whole(self, route: int, num_runs: int, num_outputs: int) -> bool:
        """Whether so many stages' runs and outputs are all of an attempt on a route."""
        way = self.ways[route]
        return num_runs >= way.num_stages and num_outputs >= way.num_outputs

    def is_any_live(self, but: Collection[int] = ()) -> bool:
        """Whether a route, none of `but`, has all its devices."""
        return any(number not in but for number in self.live)

    def may_come(self, but: Collection[int] = ()) -> bool:
        """Whether a route, none of `but`, has lost no device for good."""
        gone = {d for d, event in self._away.items() if isinstance(event, DeviceRemoved)}
        return any(
            number not in but and gone.isdisjoint(way.devices)
            for number, way in enumerate(self.ways)
        )

    def why_away(self) -> DeviceLost | DeviceRemoved | None:
        """Return why no route is live: for good, if one is; None if one is live."""
        if self.live:
            return None
        needed = {device for way in self.ways for device in way.devices}
        causes = [event for device, event in self._away.items() if device in needed]
        return next((e for e in causes if isinstance(e, DeviceRemoved)), causes[0])

    def choose(self, but: Collection[int] = (), near: frozenset[str] = frozenset()) -> int | None:
        """Return the live route, none of `but`, to take next; None where there is none.

        `near`: devices that it is to have, and if it can be no others.
        """
        if not self.live or (but and not self.is_any_live(but)):
            return None
        if self.count == 1:
            return 0
        self._now += 1 / self._share
        chosen = self._nearest(but, near) if near else self._first(but)
        way = self.ways[chosen]
        # It pays a request, and owes one at most.
        way.turn = min(max(way.turn + 1 / way.share, self._now), self._now + 1 / way.share)
        self._put(chosen)
        return chosen

    def _first(self, but: Collection[int]) -> int:
        passed: list[int] = []
        while True:
            due, number = heapq.heappop(self._heap)
            way = self.ways[number]
            if due != way.due:
                continue  # it has another place
            if number in but:
                passed.append(number)
            elif way.due_at(self._now) > due:
                self._put(number)
            else:
                break
        for other in passed:
            self._put(other)
        return number

    def _nearest(self, but: Collection[int], near: frozenset[str]) -> int:
        def rank(number: int) -> tuple[int, int, float, int]:
            way = self.ways[number]
            far, more = len(near - way.devices), len(way.devices - near)
            return far, more, way.due_at(self._now), number

        return min((number for number in self.live if number not in but), key=rank)
