"""Trace of a Core's requests in Google's Trace Event Format, for Perfetto and Chrome.

The viewer shows one process for the client, with a lane for each request in flight, and one process
for each node, with a lane for each stream of its devices. A wait in a device's queue is an
asynchronous event. The inputs of a request and the wires between its stages are flows. All times
are by the client's clock; runs that a node reported before its clock offset was known are omitted.
"""

from __future__ import annotations

import heapq
import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from hetero.devices.errors import ArgumentError
from hetero.devices.request.response import StageTiming
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest, Observer
from hetero.scheduler.types.events import DeviceReturned


class Trace:
    """Trace of a Core's requests, from `Core.trace` until `close` or the end of a ``with`` block.

    Attributes
    ----------
    path : pathlib.Path
        The file, written when the trace is closed: JSON in Google's Trace Event Format, for
        https://ui.perfetto.dev or ``chrome://tracing``.
    is_written : bool
        Whether the file was written. After an error before the first request it is not.
    num_left_out : int
        Number of finished requests that the trace lacks, because it keeps only the latest ones.
    """

    def __init__(
        self,
        path: str | Path,
        observers: list[Observer],
        nodes: Callable[[], Mapping[str, str]],
        in_flight: Callable[[], Sequence[ObservedRequest]],
        requests: int,
    ) -> None:
        if requests < 1:
            raise ArgumentError(f"requests={requests}: expected at least 1.")
        self.path = Path(path)
        self.num_left_out = 0
        self.is_written = False
        self._observers = observers
        self._nodes = nodes
        self._in_flight = in_flight
        self._devices: deque[DeviceEvent] = deque(maxlen=1000)
        self._latest: deque[ObservedRequest] = deque(maxlen=requests)
        if not os.access(self.path.absolute().parent, os.W_OK) or self.path.is_dir():
            raise ArgumentError(
                f"trace {self.path}: expected a file in a writable folder; choose another path."
            )
        observers.append(self)

    def close(self) -> None:
        """Stop tracing and write the file."""
        self.__exit__()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        if self not in self._observers:
            return
        self._observers.remove(self)
        requests = [*self._latest, *self._in_flight()]
        if requests or error is None:
            publish(self.path, partial(self._write, requests))
            self.is_written = True

    def ended(self, request: ObservedRequest) -> None:
        """Record a finished request."""
        self.num_left_out += len(self._latest) == self._latest.maxlen
        self._latest.append(request)

    def ran(self, request: ObservedRequest) -> None:
        """Do nothing: the finished request has the times of its stages."""

    def device(self, event: DeviceEvent) -> None:
        """Record a device's loss or return; the last thousand are kept."""
        self._devices.append(event)

    def _write(self, requests: Sequence[ObservedRequest], file: BinaryIO) -> None:
        counts: dict[str, Any] = {"requests": len(requests), "left_out": self.num_left_out}
        nodes = self._nodes() if requests else {}
        events = trace_events(requests, nodes, tuple(self._devices), now_s=time.monotonic())
        file.write(b'{"displayTimeUnit": "ms", "otherData": %s,\n' % json.dumps(counts).encode())
        file.write(b'"traceEvents": [')
        for number, event in enumerate(events):
            file.write(b",\n" if number else b"\n")
            file.write(json.dumps(event).encode())
        file.write(b"\n]}\n")


Event = dict[str, Any]
#: Process and thread of the viewer.
Track = tuple[int, int]

#: Remaining error of a node's clock after its offset was corrected.
_CLOCK_ERROR_S: Final = 0.1

_CLIENT: Final = 1
#: Nanoseconds by which a flow starts before its slice ends: at the end it belongs to no slice.
_INSIDE_NS: Final = 1


def trace_events(
    requests: Sequence[ObservedRequest],
    nodes: Mapping[str, str],
    devices: Iterable[DeviceEvent] = (),
    *,
    now_s: float,
) -> Iterator[Event]:
    """Yield the events of requests and devices; unfinished requests end at `now_s`."""
    if requests:
        yield from _Events(requests, nodes, now_s).all(devices)


def on_client_clock(request: ObservedRequest) -> ObservedRequest:
    """Return a request without the runs whose times are by an uncorrected clock."""
    first_s = request.record.submitted.now_s - _CLOCK_ERROR_S
    last_s = (request.record.ended_s or 0.0) + _CLOCK_ERROR_S
    runs = (r for r in request.runs if first_s <= r.started_s and r.ended_s <= last_s)
    return request._replace(runs=tuple(runs))


class _Events:
    """Trace events of requests, from the start of the first one until `now_s`."""

    def __init__(
        self, requests: Sequence[ObservedRequest], nodes: Mapping[str, str], now_s: float
    ) -> None:
        self._origin_s = min(request.record.submitted.now_s for request in requests)
        self._now_s = now_s
        self._requests = [on_client_clock(request) for request in requests]
        #: Identity of a run -> the requests that were batched in it.
        self._requests_of_run: defaultdict[int, list[int]] = defaultdict(list)
        runs: dict[int, StageTiming] = {}
        for request in self._requests:
            for run in request.runs:
                self._requests_of_run[id(run)].append(request.record.id)
                runs[id(run)] = run
        self._tracks = _Tracks(runs.values(), nodes)
        self._flow_numbers = count(1)

    def all(self, devices: Iterable[DeviceEvent]) -> Iterator[Event]:
        lanes = _lanes((r.record.submitted.now_s, self._end_s(r)) for r in self._requests)
        yield _name_event("process", (_CLIENT, 0), "client")
        for lane in range(max(lanes) + 1):
            yield _name_event("thread", (_CLIENT, lane + 1), f"requests, lane {lane + 1}")
        yield from self._tracks.names()
        for request, lane in zip(self._requests, lanes, strict=True):
            track = (_CLIENT, lane + 1)
            yield from self._of_request(request, track)
            runs = {run.stage: run for run in request.runs}
            for run in runs.values():
                if self._is_first(request, run):
                    yield from self._of_stage(request, run)
            yield from self._flows(request, runs, track)
        for event in devices:
            change = "is back" if isinstance(event, DeviceReturned) else f"lost: {event.cause}"
            ns = max(0, self._ns(event.now_s))
            yield _timed_event("i", f"{event.device} {change}", "device", (_CLIENT, 1), ns, s="g")

    def _is_first(self, request: ObservedRequest, run: StageTiming) -> bool:
        """Whether a request is the first of those that were batched in a run."""
        return self._requests_of_run[id(run)][0] == request.record.id

    def _end_s(self, request: ObservedRequest) -> float:
        ended_s = request.record.ended_s
        return self._now_s if ended_s is None else ended_s

    def _ns(self, time_s: float) -> int:
        return round((time_s - self._origin_s) * 1e9)

    def _span(
        self, name: str, cat: str, track: Track, begin_s: float, end_s: float, **more: Any
    ) -> Event:
        """Return an event with a duration."""
        ns = self._ns(begin_s)
        duration_ns = max(0, self._ns(end_s) - ns)
        return _timed_event("X", name, cat, track, ns, dur=duration_ns / 1e3, **more)

    def _of_request(self, request: ObservedRequest, track: Track) -> Iterator[Event]:
        record = request.record
        begin_s, end_s = record.submitted.now_s, self._end_s(request)
        args = {
            "request": record.id,
            "deployment": request.deployment,
            "state": record.state.value,
            "attempts": record.attempt,
            "input_nbytes": record.submitted.nbytes,
        }
        if trace := record.submitted.trace:
            args["traceparent"] = trace
        name = f"{request.route.plan.name}, request {record.id}"
        yield self._span(name, "request", track, begin_s, end_s, args=args)
        admitted_s = end_s if record.admitted_s is None else record.admitted_s
        if admitted_s > begin_s:
            yield self._span("waits for admission", "request", track, begin_s, admitted_s)
        if end_s > admitted_s:
            yield self._span("in flight", "request", track, admitted_s, end_s)
        if record.attempt == 1 and request.runs:
            return
        for line in record.story:
            args = {"attempt": line.attempt}
            yield _timed_event(
                "i", line.event, "request", track, self._ns(line.time_s), s="t", args=args
            )

    def _of_stage(self, request: ObservedRequest, run: StageTiming) -> Iterator[Event]:
        """Yield the events of a stage's run and of its wait in the device's queue."""
        record, track = request.record, self._tracks.of[id(run)]
        name = f"{request.route.plan.name}, stage {run.stage}"
        args = {
            "request": record.id,
            "attempt": record.attempt,
            "stage": run.stage,
            "device": run.device,
            "upload_us": run.upload_s * 1e6,
            "infer_us": run.infer_s * 1e6,
            "download_us": run.download_s * 1e6,
            "output_nbytes": run.output_nbytes,
        }
        if len(numbers := self._requests_of_run[id(run)]) > 1:
            args["joined"] = numbers
        yield self._span(name, "stage", track, run.started_s, run.ended_s, args=args)
        if run.queued_s > 0:
            # Waits overlap, so they are asynchronous events.
            wait = {"id": f"{request.deployment}/{record.id}/{run.stage}"}
            request_args = {"request": record.id}
            ready_ns, began_ns = self._ns(run.started_s - run.queued_s), self._ns(run.started_s)
            yield _timed_event(
                "b", f"{name} waits", "queue", track, ready_ns, args=request_args, **wait
            )
            yield _timed_event("e", f"{name} waits", "queue", track, began_ns, **wait)

    def _flows(
        self, request: ObservedRequest, runs: Mapping[int, StageTiming], track: Track
    ) -> Iterator[Event]:
        """Yield the flows of a request's inputs and wires.

        Only the first of several batched requests has the wires.
        """
        route, record = request.route, request.record
        tensors: dict[tuple[int, int], list[str]] = {}
        for wire in route.plan.wires:
            pair = (route.stages[wire.producer], route.stages[wire.consumer])
            tensors.setdefault(pair, []).append(wire.tensor)
        consumers = {consumer for _, consumer in tensors}

        def flow(cat: str, track: Track, ns: int, to: StageTiming, **args: Any) -> Iterator[Event]:
            number, arrives_ns = next(self._flow_numbers), self._ns(to.started_s)
            yield _timed_event("s", cat, cat, track, ns, id=number, args=args)
            yield _timed_event(
                "f", cat, cat, self._tracks.of[id(to)], arrives_ns, id=number, bp="e"
            )

        for run in runs.values():
            if run.stage not in consumers and record.admitted_s is not None:
                flow_args = {"request": record.id, "consumer": run.stage}
                yield from flow("inputs", track, self._ns(record.admitted_s), run, **flow_args)
        for (producer, consumer), names in tensors.items():
            if producer in runs and consumer in runs:
                run = runs[producer]
                if not self._is_first(request, run):
                    continue
                leaves_ns = max(self._ns(run.started_s), self._ns(run.ended_s) - _INSIDE_NS)
                yield from flow(
                    "wire",
                    self._tracks.of[id(run)],
                    leaves_ns,
                    runs[consumer],
                    request=record.id,
                    producer=producer,
                    consumer=consumer,
                    tensors=names,
                )


class _Tracks:
    """Assignment of stage runs to the processes and threads of the viewer."""

    def __init__(self, runs: Iterable[StageTiming], nodes: Mapping[str, str]) -> None:
        by_device: defaultdict[str, list[StageTiming]] = defaultdict(list)
        for run in runs:
            by_device[run.device].append(run)
        #: A run's identity -> (process, thread).
        self.of: dict[int, Track] = {}
        self._processes: dict[str, int] = {}
        self._threads: dict[Track, str] = {}
        for device, device_runs in sorted(by_device.items()):
            node = nodes.get(device, "unknown")
            pid = self._processes.setdefault(node, _CLIENT + 1 + len(self._processes))
            first = len(self._threads) + 1
            lanes = _lanes((run.started_s, run.ended_s) for run in device_runs)
            for run, lane in zip(device_runs, lanes, strict=True):
                self.of[id(run)] = (pid, first + lane)
            for lane in range(max(lanes) + 1):
                self._threads[pid, first + lane] = (
                    f"{device}, stream {lane + 1}" if lane else device
                )

    def names(self) -> Iterator[Event]:
        for node, pid in self._processes.items():
            yield _name_event("process", (pid, 0), f"node {node}")
        for track, name in self._threads.items():
            yield _name_event("thread", track, name)


def _lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Assign spans to the fewest lanes such that no two spans overlap on a lane."""
    all_spans = list(spans)
    lanes = [0] * len(all_spans)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for index in sorted(range(len(all_spans)), key=all_spans.__getitem__):
        begin_s, end_s = all_spans[index]
        while busy and busy[0][0] <= begin_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lanes[index] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end_s, lanes[index]))
    return lanes


def _timed_event(phase: str, name: str, cat: str, track: Track, ns: int, **more: Any) -> Event:
    """Return an event at a time in nanoseconds; the format uses microseconds."""
    pid, tid = track
    return {"ph": phase, "name": name, "pid": pid, "tid": tid, "cat": cat, "ts": ns / 1e3, **more}


def _name_event(kind: str, track: Track, name: str) -> Event:
    """Return the event that names a process or thread."""
    pid, tid = track
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}
