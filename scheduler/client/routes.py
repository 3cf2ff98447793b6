"""Which route an attempt takes: the one that is expected to have it done first. Pure.

Each choice raises every live route's credit by its share, and the chosen one pays a whole request.
A request is expected to be done when what runs on its route is, and its own turn has come by the
shares. So while little runs, requests are spread as evenly as whole requests can be (of equal
routes, in turn); and a route on which requests pile up is passed by until it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scheduler.vocabulary.events import DeviceGone, DeviceLost
from scheduler.vocabulary.placement import Route


@dataclass(slots=True)
class _Way:
    devices: frozenset[str]
    share: float
    #: How many stages' runs, and outputs of the model, make an answer whole.
    num_stages: int = 0
    num_outputs: int = 0
    num_running: int = 0
    #: What it has earned by its share and not been given; at most one request either way.
    credit: float = 0.0


class Routes:
    """A deployment's routes: what runs on each, and which devices are away."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._ways: list[_Way] = []
        #: Why a device is away, the first to go first.
        self._away: dict[str, DeviceLost | DeviceGone] = {}
        self.add(routes)

    def add(self, routes: Sequence[Route]) -> None:
        """Add routes, numbered after those that are there."""
        for route in routes:
            plan = route.plan
            made = {name for stage in plan.stages for name in stage.outputs}
            num_outputs = len(made.intersection(plan.output_names)) if route.stages else 0
            self._ways.append(
                _Way(frozenset(plan.devices), route.share, len(route.stages), num_outputs)
            )
        self.count = len(self._ways)
        self._all = list(range(self.count))

    def lose(self, event: DeviceLost | DeviceGone) -> None:
        """Take note that a device is away."""
        self._away[event.device] = event

    def regain(self, device: str) -> None:
        """Take note that a device is back."""
        self._away.pop(device, None)

    def uses(self, route: int, device: str) -> bool:
        """Whether a route needs a device."""
        return device in self._ways[route].devices

    def begin(self, route: int) -> None:
        """Count an attempt on a route."""
        self._ways[route].num_running += 1

    def end(self, route: int) -> None:
        """Count it no longer."""
        self._ways[route].num_running -= 1

    def is_whole(self, route: int, num_runs: int, num_outputs: int) -> bool:
        """Whether so many stages' runs and outputs are all of an attempt on a route."""
        way = self._ways[route]
        return num_runs >= way.num_stages and num_outputs >= way.num_outputs

    def num_running(self, route: int) -> int:
        """Return how many attempts are on a route."""
        return self._ways[route].num_running

    def is_any_live(self, but: Collection[int] = ()) -> bool:
        """Whether a route, none of `but`, has all its devices."""
        return bool(self._live(but) if but or self._away else self._all)

    def may_come(self, but: Collection[int] = ()) -> bool:
        """Whether a route, none of `but`, has lost no device for good."""
        gone = {d for d, event in self._away.items() if isinstance(event, DeviceGone)}
        return any(
            number not in but and gone.isdisjoint(way.devices)
            for number, way in enumerate(self._ways)
        )

    def why_away(self) -> DeviceLost | DeviceGone | None:
        """Return why no route is live: for good, if one is; None if one is live."""
        needed = {device for way in self._ways for device in way.devices}
        causes = [event for device, event in self._away.items() if device in needed]
        gone = [event for event in causes if isinstance(event, DeviceGone)]
        return None if self._live() else (gone or causes)[0]

    def choose(self, but: Collection[int] = (), near: frozenset[str] = frozenset()) -> int | None:
        """Return the live route, none of `but`, to take next; None where there is none.

        `near`: devices that it is to have, and if it can be no others.
        """
        live = self._live(but) if but or self._away else self._all
        if near and len(live) > 1:
            far = {
                n: (len(near - has), len(has - near))
                for n in live
                for has in (self._ways[n].devices,)
            }
            live = [n for n in live if far[n] == min(far.values())]
        if len(live) < 2:
            return live[0] if live else None
        total = sum(self._ways[number].share for number in live)
        for number in live:
            way = self._ways[number]
            way.credit = min(1.0, way.credit + way.share / total)
        # Sums of shares differ by rounding; what is that near is equal.
        due = {n: (1 + w.num_running - w.credit) / w.share for n in live for w in (self._ways[n],)}
        soonest = min(due.values()) * (1 + 1e-9) + 1e-9
        chosen = next(number for number in live if due[number] <= soonest)
        way = self._ways[chosen]
        way.credit = max(-1.0, way.credit - 1.0)
        return chosen

    def _live(self, but: Collection[int] = ()) -> list[int]:
        return [
            number
            for number, way in enumerate(self._ways)
            if number not in but and self._away.keys().isdisjoint(way.devices)
        ]
