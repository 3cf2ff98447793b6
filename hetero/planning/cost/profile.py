"""Profiling: what a model's nodes and subgraphs take on devices, and tensors between them.

Each kind of device is measured once. Its supported parts are timed as wholes, warm; the device's
own node times are spread over the model's nodes; then requests follow each other, and all devices
work at once, as they will in a pipeline. Each figure is measured until it has settled; what other
work spoiled is assumed instead, and told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.errors import ClusterError, DeviceError, HeteroError
from hetero.devices.plugin.program import Value
from hetero.planning.cost.calibration import fit_pace, low, rounds_spoiled
from hetero.planning.cost.concurrent_load import measure_load
from hetero.planning.cost.costs import CLIENT, Costs, DeviceCosts, Line, Time, Transfer
from hetero.planning.cost.estimation import fit_speed, node_work, value_nbytes, with_shapes
from hetero.planning.cost.node_times import fused_groups, spread
from hetero.planning.cost.profile_inputs import capture, feeds, regions
from hetero.planning.cost.profile_request import Kind, Subject, kinds_of
from hetero.planning.cost.timing import time_model
from hetero.planning.cost.transfer_times import ASSUMED, measure_transfer

_log = logging.getLogger(__name__)

#: Takes steps done, steps in all, and what is being measured.
Progress = Callable[[int, int, str], None]
#: Parts of a model that are measured on one kind of device, the largest first.
MOST_REGIONS: Final = 12
#: Seconds that a model is timed at most.
MOST_S: Final = 0.5


def profile(subject: Subject, progress: Progress | None = None) -> Costs:
    """Measure a model on devices.

    Ctrl-C ends it; what was measured until then is returned, with ``interrupted`` set. A device
    that fails or vanishes is left out and listed in ``missing`` with the reason.
    """
    return _Profile(subject, progress or (lambda done, steps, text: None)).run()


class _Profile:
    """One profiling run: its steps in order, and what they found."""

    def __init__(self, subject: Subject, progress: Progress) -> None:
        self._subject = subject
        self._progress = progress
        given = ((port.name, subject.inputs.get(port.name)) for port in subject.model.inputs)
        self._shapes = {name: v.shape for name, v in given if isinstance(v, np.ndarray)}
        self._model = with_shapes(subject.model, self._shapes)
        self._kinds = kinds_of(subject)
        self._values: dict[str, Value] = dict(subject.inputs)
        #: By the names of the kinds.
        self._transfers: dict[tuple[str, str], Transfer] = {}
        self._steps = 2 + len(self._kinds) + len(self._pairs())
        self._done = 0
        self._measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._end_s = time.monotonic() + subject.seconds
        #: When the step that is done now is to end: every step gets its share of the time left.
        self._until_s = 0.0

    def run(self) -> Costs:
        interrupted = False
        try:
            self._step("finding what each device supports", self._find_parts)
            for kind in self._kinds:
                self._step(f"nodes on {kind.name}", partial(self._measure_kind, kind))
            self._step("all devices at once", self._measure_load)
            for sender, receiver, device in self._pairs():
                text = f"transfers {sender.name} to {device}"
                self._step(text, partial(self._measure_transfer, sender, receiver, device))
        except KeyboardInterrupt:
            interrupted = True
        return self._costs(interrupted)

    def _step(self, text: str, work: Callable[[], None]) -> None:
        self._progress(self._done, self._steps, text)
        self._until_s = time.monotonic() + self._left_s() / (self._steps - self._done)
        work()
        self._done += 1
        self._progress(self._done, self._steps, text)

    def _left_s(self) -> float:
        """Seconds of all the time granted that are left."""
        return max(0.0, self._end_s - time.monotonic())

    def _is_late(self) -> bool:
        """Whether the step's time is over: what is not measured by now is estimated."""
        return time.monotonic() >= self._until_s

    def _find_parts(self) -> None:
        subject = self._subject
        for kind in self._kinds:
            found = regions(self._model, subject.supports[kind.name], kind.name)
            found.sort(key=lambda m: -sum(node_work(m, n).operations for n in m.nodes))
            kind.parts = found[:MOST_REGIONS]
        wanted = dict.fromkeys(p.name for k in self._kinds for m in k.parts for p in m.inputs)
        affinity: dict[str, str] = {}
        for device in reversed(subject.devices):
            affinity |= dict.fromkeys(subject.supports[device.name], device.name)
        # The model runs once for the inner values that its parts are fed with.
        if len(affinity) == len(self._model.nodes):
            self._values |= capture(
                subject.executor,
                self._model,
                affinity,
                subject.configs,
                subject.inputs,
                [name for name in wanted if name not in self._values],
            )

    def _measure_kind(self, kind: Kind) -> None:
        """Time a kind's parts; a device that fails is left out, the others are not."""
        for place, part in enumerate(kind.parts):
            inputs = feeds(part, self._values)
            # The largest part is measured in any case: the rest is estimated by it.
            if inputs is None or (kind.nodes and self._is_late()):
                continue
            now_s = time.monotonic()
            until_s = now_s + min(MOST_S, (self._until_s - now_s) / (len(kind.parts) - place))
            config = self._subject.configs.get(kind.name, {})
            try:
                timing = time_model(
                    self._subject.executor, kind.name, part, inputs, config, until_s
                )
            except (DeviceError, ClusterError) as error:
                kind.error = f"{type(error).__name__}: {error}"
                return
            except HeteroError as error:  # of values that were made up for it, say
                _log.warning("device=%s: a part of the model is estimated: %s", kind.name, error)
                continue
            if place == 0:
                kind.alone_s.append(timing.run_s)
                kind.spoiled |= {"nodes"} if timing.spoiled else set()
            kind.fused += fused_groups(part, timing.executed)
            kind.nodes |= {n: Time(s, "measured") for n, s in spread(part, timing).items()}

    def _measure_load(self) -> None:
        kinds = (kind for kind in self._kinds if any(kind.alone_s) and kind.error is None)
        fed = ((kind, feeds(kind.parts[0], self._values)) for kind in kinds)
        # What devices do to each other matters most: this takes what it needs.
        half_s = self._left_s() / 2
        if half_s:
            measure_load(self._subject, [(k, x) for k, x in fed if x is not None], half_s)

    def _pairs(self) -> list[tuple[Kind, Kind, str]]:
        """Return each pair of kinds, and the second one's device beside the first one's."""
        return [
            (a, b, other)
            for a in self._kinds
            for b in self._kinds
            for other in [d.name for d in b.devices if d is not a.devices[0]][:1]
        ]

    def _measure_transfer(self, sender: Kind, receiver: Kind, device: str) -> None:
        if not (sender.error or receiver.error or self._is_late()):
            with suppress(HeteroError):
                self._transfers[sender.name, receiver.name] = measure_transfer(
                    self._subject.executor,
                    sender.name,
                    device,
                    self._subject.configs,
                    self._until_s,
                )

    def _costs(self, interrupted: bool) -> Costs:
        devices: dict[str, DeviceCosts] = {}
        missing: dict[str, str] = {}
        for kind in self._kinds:
            if kind.error is None and interrupted and not kind.nodes:
                kind.error = "not measured: profiling was interrupted"
            if kind.error is not None:
                missing |= {d.name: kind.error for d in kind.devices}
                continue
            share = self._share(kind)
            rounds = [kind.alone, kind.company]
            if any(map(rounds_spoiled, rounds)):
                kind.spoiled.add("load")
                rounds = [[], []]
            alone, company = (fit_pace(found) for found in rounds)
            nodes = self._complete(kind)
            for device in kind.devices:
                devices[device.name] = DeviceCosts(
                    identity=replace(kind.identity, node=device.node),
                    nodes=nodes,
                    share=share,
                    alone=alone,
                    company=replace(company, load=company.load * share),
                    fused=tuple(kind.fused),
                    spoiled=tuple(sorted(kind.spoiled)),
                )
        return Costs(
            model=self._model.name,
            model_hash=self._subject.model.content_hash,
            shapes=self._shapes,
            devices=devices,
            transfers=self._all_transfers(devices),
            missing=missing,
            interrupted=interrupted,
            measured_at=self._measured_at,
        )

    def _share(self, kind: Kind) -> float:
        """Return what a device's times are multiplied by while it leaves cores to the others.

        With the same cores as alone, those runs tell of the device alone too.
        """
        given = self._subject.configs.get(kind.name, {}).get("INFERENCE_NUM_THREADS", 0)
        quiet = [found.run_s for found in kind.quiet]
        if int(given or 0) or kind.identity.num_threads == 1 or not quiet:
            kind.alone_s += quiet
            return 1.0
        return max(1.0, low(quiet) / low(kind.alone_s))

    def _complete(self, kind: Kind) -> dict[str, Time]:
        """Measured times, and guesses for the other nodes that the device supports."""
        model, supported = self._model, self._subject.supports[kind.name]
        alive = (model.nodes[p] for p in request_dependent_positions(model))
        works = {node.name: node_work(model, node) for node in alive if node.name in supported}
        # They were measured with the first of the runs that tell what the whole takes.
        factor = low(kind.alone_s) / kind.alone_s[0] if any(kind.alone_s) else 1.0
        known = {n: Time(t.seconds * factor, t.source) for n, t in kind.nodes.items()}
        speed = fit_speed((works[n], t.seconds) for n, t in known.items() if n in works)
        return {
            name: known.get(name) or Time(speed(work), "estimated") for name, work in works.items()
        }

    def _all_transfers(self, devices: Mapping[str, Any]) -> dict[tuple[str, str], Transfer]:
        kind_of = {d.name: kind for kind in self._kinds for d in kind.devices}
        found = {
            (a, b): self._transfers.get((kind_of[a].name, kind_of[b].name), ASSUMED)
            for a in devices
            for b in devices
            if a != b
        }
        for d in devices:
            kind = kind_of[d]
            found[CLIENT, d] = _way([q.there_s for q in kind.quiet], kind, "inputs")
            found[d, CLIENT] = _way([q.back_s for q in kind.quiet], kind, "outputs")
        return found


def _way(seconds: Sequence[float], kind: Kind, ports: str) -> Transfer:
    """Return a way between the client and a device, as requests of the largest part tell.

    It keeps no device from computing.
    """
    if not seconds:
        return ASSUMED
    per_byte = ASSUMED.latency.b
    nbytes = sum(map(value_nbytes, getattr(kind.parts[0], ports)))
    start_s = max(0.0, low(seconds) - per_byte * nbytes)
    return Transfer(Line(start_s, per_byte, "calibrated"), Line(0.0, 0.0, "estimated"))
