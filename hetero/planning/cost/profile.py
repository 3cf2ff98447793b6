"""Profiling: what a model's nodes and subgraphs take on devices, and tensors between them.

Each kind of device is measured once. Its supported parts are timed as wholes, warm; the device's
own node times are spread over the model's nodes; chunks of the largest part calibrate what a cut
costs; then requests follow each other, and all devices work at once, as they will in a pipeline.
Each figure is measured until it has settled; what other work spoiled is assumed instead, and told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from devices.errors import ClusterError, DeviceError, HeteroError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Value
from hetero.affinity.requests import request_positions
from hetero.planning.cost.calibration import fit_pace, fit_subgraphs, low, rounds_spoiled
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    Line,
    Time,
    Transfer,
)
from hetero.planning.cost.kinds import Kind, Subject, kinds_of
from hetero.planning.cost.load import BusyDevices
from hetero.planning.cost.nodes import fused_groups, spread
from hetero.planning.cost.samples import (
    capture,
    chunks,
    feeds,
    needed,
    node_key,
    regions,
    shapes_of,
    single_node,
)
from hetero.planning.cost.timing import time_in_turns, time_model
from hetero.planning.cost.transfers import ASSUMED, measure_transfer
from hetero.planning.cost.work import (
    fit_speed,
    node_work,
    value_nbytes,
    with_shapes,
)
from scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Takes steps done, steps in all, and what is being measured.
Progress = Callable[[int, int, str], None]
#: Parts of a model that are measured on one kind of device, the largest first.
MOST_REGIONS: Final = 12
#: Into how many chunks the largest part is cut for calibration.
PIECES: Final = 4
#: A part with fewer nodes says nothing about cuts.
LEAST_NODES: Final = 8
#: Seconds that a model is timed at most.
MOST_S: Final = 0.5
#: Share of the largest part's time that a cut of it costs at most: more was other work.
MOST_CUT: Final = 0.5
#: Keeps nobody busy.
NOTHING: Final = Line(0.0, 0.0, "estimated")
#: Single nodes that are measured where a device has no node times of its own.
MOST_SINGLES: Final = 60


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
        shapes = shapes_of(subject.inputs, [p.name for p in subject.model.inputs])
        self._shapes = shapes
        self._model = with_shapes(subject.model, shapes)
        self._kinds = kinds_of(subject)
        self._values: dict[str, Value] = dict(subject.inputs)
        #: Alike devices have one figure: to the planner they are then interchangeable.
        names = [device.name for device in subject.devices]
        self._busy = BusyDevices(subject.executor, subject.configs, names)
        #: Device -> seconds that a call keeps it busy, one for each transfer measured.
        self._calls: dict[str, list[float]] = {}
        self._transfers: dict[tuple[str, str], Transfer] = {}
        pairs = len(self._pairs())
        self._steps = 1 + 2 * len(self._kinds) + 3 + pairs
        self._done = 0
        self._measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._end_s = time.monotonic() + subject.seconds
        #: When the step that is done now is to end: every step gets its share of the time left.
        self._until_s = 0.0

    def run(self) -> Costs:
        interrupted = False
        # Load sways most with what else the machine does: it is looked at now and again.
        load = ("all devices at once", self._measure_load)
        try:
            self._step("finding what each device supports", self._find_parts)
            for kind in self._kinds:
                self._step(f"nodes on {kind.name}", partial(self._on, kind, self._measure_parts))
            self._open_load()
            self._step(*load)
            for kind in self._kinds:
                self._step(f"subgraphs on {kind.name}", partial(self._on, kind, self._calibrate))
            self._step(*load)
            for sender, receiver in self._pairs():
                text = f"transfers {sender.name} to {receiver.name}"
                self._step(text, partial(self._measure_transfer, sender, receiver))
            self._step(*load)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._busy.close()
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

    def _on(self, kind: Kind, work: Callable[[Kind], None]) -> None:
        """Do a step on a kind of device; what fails leaves the device out, not the others."""
        if kind.error is not None:
            return
        try:
            work(kind)
        except (DeviceError, ClusterError) as error:
            kind.error = f"{type(error).__name__}: {error}"

    def _find_parts(self) -> None:
        subject = self._subject
        for kind in self._kinds:
            found = regions(self._model, subject.supports[kind.name], kind.name)
            found.sort(key=lambda m: -sum(node_work(m, n).operations for n in m.nodes))
            kind.parts = found[:MOST_REGIONS]
        wanted = [name for k in self._kinds for name in needed(k.parts)]
        self._capture([name for name in wanted if name not in self._values])

    def _capture(self, names: Sequence[str]) -> None:
        """Run the model once for the inner values that parts are fed with."""
        if not names:
            return
        affinity: dict[str, str] = {}
        for device in reversed(self._subject.devices):
            affinity |= dict.fromkeys(self._subject.supports[device.name], device.name)
        if len(affinity) == len(self._model.nodes):
            self._values |= capture(
                self._subject.executor,
                self._model,
                affinity,
                self._subject.configs,
                self._subject.inputs,
                names,
            )

    def _try(self, kind: Kind, measure: Callable[..., T]) -> T | None:
        """Measure on a kind of device; None where it fails, on values made up for it, say.

        What goes wrong with the device itself is raised.

        `measure`: takes the executor, a device and its properties.
        """
        config = self._subject.configs.get(kind.name, {})
        try:
            return measure(executor=self._subject.executor, device=kind.name, config=config)
        except (DeviceError, ClusterError):
            raise
        except HeteroError as error:
            _log.warning("device=%s: a part of the model is estimated: %s", kind.name, error)
            return None

    def _share_s(self, items: int, models: int = 1) -> float:
        """Return when the next of this many items that the step still has is to end.

        `models`: how many it measures.
        """
        now = time.monotonic()
        return now + min(MOST_S * models, (self._until_s - now) / max(1, items))

    def _measure_parts(self, kind: Kind) -> None:
        for place, part in enumerate(kind.parts):
            inputs = feeds(part, self._values)
            # The largest part is measured in any case: the rest is estimated by it.
            if inputs is None or (kind.nodes and self._is_late()):
                continue
            until_s = self._share_s(len(kind.parts) - place)
            timing = self._try(
                kind, partial(time_model, model=part, inputs=inputs, until_s=until_s, profile=True)
            )
            if timing is None:
                continue
            if place == 0:
                kind.alone_s.append(timing.run_s)
                kind.spoiled |= {"nodes"} if timing.spoiled else set()
            if timing.node_times_s:
                times = spread(part, timing)
                kind.fused += fused_groups(part, timing.executed)
            else:
                times = self._single_nodes(kind, part)
            kind.nodes |= {n: Time(s, "measured") for n, s in times.items()}
            alive = [part.nodes[p].name for p in request_positions(part)]
            if place == 0 and times.keys() >= set(alive):
                kind.whole = (sum(times[n] for n in alive), timing.run_s)

    def _single_nodes(self, kind: Kind, part: Model) -> dict[str, float]:
        """Time each distinct node by itself, where the device does not report node times."""
        groups: dict[str, list[int]] = {}
        for position in request_positions(part):
            groups.setdefault(node_key(part, position), []).append(position)
        ordered = sorted(
            groups.values(), key=lambda g: -len(g) * node_work(part, part.nodes[g[0]]).operations
        )[:MOST_SINGLES]
        self._capture(needed(single_node(part, g[0]) for g in ordered))
        found: dict[str, float] = {}
        for place, group in enumerate(ordered):
            alone = single_node(part, group[0])
            inputs = feeds(alone, self._values)
            if inputs is None or (found and self._is_late()):
                continue
            until_s = self._share_s(len(ordered) - place)
            timing = self._try(
                kind, partial(time_model, model=alone, inputs=inputs, until_s=until_s)
            )
            if timing is None:
                continue
            found |= {part.nodes[p].name: timing.run_s for p in group}
        return found

    def _calibrate(self, kind: Kind) -> None:
        """Time the largest part and chunks of it in turns: they tell what a cut costs."""
        part = kind.parts[0] if kind.parts else None
        if part is None or not any(kind.alone_s) or len(request_positions(part)) < LEAST_NODES:
            return
        try:
            cut = [c for c in chunks(part, PIECES) if request_positions(c)]
        except HeteroError:
            return  # a tensor of unknown type: this part cannot be cut everywhere
        if not self._is_late():
            self._capture([n for n in needed(cut) if n not in self._values])
        given = [(m, feeds(m, self._values)) for m in (part, *cut)]
        models = [(m, inputs) for m, inputs in given if inputs is not None]
        if self._is_late() or len(models) < len(given) or len(cut) < 2:
            return
        until_s = self._share_s(1, len(models))
        timings = self._try(kind, partial(time_in_turns, models=models, until_s=until_s))
        if timings is None:
            return
        whole, *rest = timings
        kind.alone_s.append(whole.run_s)
        cost = (sum(one.run_s for one in rest) / whole.run_s - 1) / (len(rest) - 1)
        # Chunks of a part that take twice its time were measured beside other work.
        if any(one.spoiled for one in timings) or cost > MOST_CUT:
            kind.spoiled.add("cuts")
        elif cost > 0:
            # Against the same turns of the whole, and in the measure of its nodes.
            kind.cut_s = cost * kind.alone_s[0]

    def _open_load(self) -> None:
        """Put every device's largest part on it, where there is time left to look at them."""
        for kind in self._kinds if self._left_s() else ():
            part = kind.parts[0] if kind.parts and any(kind.alone_s) else None
            inputs = feeds(part, self._values) if part is not None else None
            if part is None or inputs is None or kind.error is not None:
                continue
            try:
                for device in kind.devices:
                    self._busy.add(kind.name, device.name, part, inputs, kind.alone_s[0])
            except (DeviceError, ClusterError) as error:
                kind.error = f"{type(error).__name__}: {error}"

    def _measure_load(self) -> None:
        # What devices do to each other matters most: the first look takes what it needs.
        share_s = max(0.0, self._until_s - time.monotonic())
        self._busy.measure(share_s if self._busy.company else self._left_s() / 2)

    def _pairs(self) -> list[tuple[DeviceDescriptor, DeviceDescriptor]]:
        """Return one pair of devices for each pair of kinds."""
        pairs = []
        for a in self._kinds:
            for b in self._kinds:
                other = next((d for d in b.devices if d is not a.devices[0]), None)
                if other is not None:
                    pairs.append((a.devices[0], other))
        return pairs

    def _measure_transfer(self, sender: DeviceDescriptor, receiver: DeviceDescriptor) -> None:
        subject = self._subject
        failed = {d.name for k in self._kinds if k.error is not None for d in k.devices}
        if {sender.name, receiver.name} & failed or self._is_late():
            return
        try:
            found, call_s = measure_transfer(
                subject.executor, sender, receiver, subject.configs, self._until_s
            )
        except HeteroError:
            return
        self._transfers[sender.name, receiver.name] = found
        if call_s is not None:
            for kind in self._kinds:
                if sender in kind.devices or receiver in kind.devices:
                    self._calls.setdefault(kind.name, []).append(call_s)

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
            kind.settle()
            dispatch, fusion = fit_subgraphs(kind.whole, kind.cut_s)
            # Of two devices the slower decides how long a call takes: the least is its own.
            call_s = min(self._calls.get(kind.name, []), default=0.0)
            rounds = self._busy.alone.get(kind.name, ()), self._busy.company.get(kind.name, ())
            if any(map(rounds_spoiled, rounds)):
                kind.spoiled.add("load")
                rounds = (), ()
            alone, company = (fit_pace(found, call_s) for found in rounds)
            load = Time(company.load.seconds * share.seconds, company.load.source)
            nodes = self._complete(kind)
            for device in kind.devices:
                devices[device.name] = DeviceCosts(
                    identity=replace(kind.identity, node=device.node),
                    nodes=nodes,
                    dispatch=dispatch,
                    fusion=fusion,
                    share=share,
                    alone=alone,
                    company=replace(company, load=load),
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

    def _share(self, kind: Kind) -> Time:
        """Return what a device's times are multiplied by while it leaves cores to the others.

        With the same cores as alone, those runs tell of the device alone too.
        """
        given = self._subject.configs.get(kind.name, {}).get("INFERENCE_NUM_THREADS", 0)
        quiet = [q.run_s for q in self._busy.quiet.get(kind.name, ())]
        if int(given or 0) or kind.identity.num_threads == 1 or not quiet:
            kind.alone_s += quiet
            return Time(1.0, "estimated")
        return Time(max(1.0, low(quiet) / low(kind.alone_s)), "calibrated")

    def _complete(self, kind: Kind) -> dict[str, Time]:
        """Measured times, and guesses for the other nodes that the device supports."""
        model = self._model
        supported = set(self._subject.supports[kind.name])
        works = {
            model.nodes[p].name: node_work(model, model.nodes[p])
            for p in request_positions(model)
            if model.nodes[p].name in supported
        }
        measured = [(works[n], t.seconds) for n, t in kind.nodes.items() if n in works]
        speed = fit_speed(measured)
        return {
            name: kind.nodes.get(name) or Time(speed(work), "estimated")
            for name, work in works.items()
        }

    def _all_transfers(self, devices: Mapping[str, Any]) -> dict[tuple[str, str], Transfer]:
        kind_of = {d.name: i for i, k in enumerate(self._kinds) for d in k.devices}
        by_kind = {(kind_of[a], kind_of[b]): t for (a, b), t in self._transfers.items()}
        between = {
            (a, b): by_kind.get((kind_of[a], kind_of[b]), ASSUMED)
            for a in devices
            for b in devices
            if a != b
        }
        ways = [self._ways(kind) for kind in self._kinds]
        there = {(CLIENT, d): ways[kind_of[d]][0] for d in devices}
        back = {(d, CLIENT): ways[kind_of[d]][1] for d in devices}
        return {**between, **there, **back}

    def _ways(self, kind: Kind) -> tuple[Transfer, Transfer]:
        """Return a device's ways from the client and back, as requests of the largest part tell.

        They keep no device from computing.
        """
        quiet = self._busy.quiet.get(kind.name)
        if not quiet:
            return ASSUMED, ASSUMED
        part, per_byte = kind.parts[0], ASSUMED.latency.b

        def way(seconds: list[float], ports: Sequence[TensorSpec]) -> Transfer:
            start_s = max(0.0, low(seconds) - per_byte * sum(map(value_nbytes, ports)))
            return Transfer(Line(start_s, per_byte, "calibrated"), NOTHING)

        return way([q.there_s for q in quiet], part.inputs), way(
            [q.back_s for q in quiet], part.outputs
        )
