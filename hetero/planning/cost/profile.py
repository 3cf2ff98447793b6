"""Profiler: measures the costs of a model's nodes on devices, and of transfers between devices.

Each group of identical devices is measured once. The profiler times the parts of the model that
the device supports, and distributes the device's node times over the model's nodes. Then it sends
many requests, to one device and to all devices at once, as in a pipeline. Each measurement runs
until it has settled. Defaults replace measurements that other processes disturbed; the costs list
them.
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
from hetero.planning.cost.calibration import fit_load_factors, low_percentile, rounds_disagree
from hetero.planning.cost.concurrent_load import measure_load
from hetero.planning.cost.costs import CLIENT, Costs, DeviceCosts, LinearCost, Time, Transfer
from hetero.planning.cost.estimation import count_work, fit_speed, value_nbytes, with_input_shapes
from hetero.planning.cost.node_times import distribute_times, find_fused_groups
from hetero.planning.cost.profile_inputs import capture_inner_values, part_inputs, supported_parts
from hetero.planning.cost.profile_request import DeviceGroup, ProfileRequest, group_devices
from hetero.planning.cost.timing import time_model
from hetero.planning.cost.transfer_times import DEFAULT_TRANSFER, measure_transfer

_log = logging.getLogger(__name__)

#: Progress callback: steps done, number of steps, description of the current step.
Progress = Callable[[int, int, str], None]
#: Maximum number of parts measured per device group, the largest first.
MAX_PARTS: Final = 12
#: Maximum seconds for timing one part.
MAX_TIMING_S: Final = 0.5


def profile(request: ProfileRequest, progress: Progress | None = None) -> Costs:
    """Measure the costs of a model on devices.

    Ctrl-C ends profiling; the result then has the costs measured so far, and ``interrupted`` set.
    A device that fails or is lost is listed in ``missing`` with the reason.
    """
    return _Profiler(request, progress or (lambda done, steps, text: None)).run()


class _Profiler:
    """One profiling run: its steps in order, and their measurements."""

    def __init__(self, request: ProfileRequest, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        values = ((port.name, request.inputs.get(port.name)) for port in request.model.inputs)
        self._shapes = {name: v.shape for name, v in values if isinstance(v, np.ndarray)}
        self._model = with_input_shapes(request.model, self._shapes)
        self._groups = group_devices(request)
        self._captured_values: dict[str, Value] = dict(request.inputs)
        #: By the names of the sending and the receiving device group.
        self._transfers: dict[tuple[str, str], Transfer] = {}
        self._num_steps = 2 + len(self._groups) + len(self._pairs())
        self._steps_done = 0
        self._measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._end_s = time.monotonic() + request.seconds
        #: End of the current step: the remaining time is divided equally among the steps.
        self._step_end_s = 0.0

    def run(self) -> Costs:
        interrupted = False
        try:
            self._step("finding the parts that each device supports", self._find_parts)
            for group in self._groups:
                self._step(f"nodes on {group.name}", partial(self._measure_group, group))
            self._step("all devices at once", self._measure_load)
            for sender, receiver, device in self._pairs():
                text = f"transfers {sender.name} to {device}"
                self._step(text, partial(self._measure_transfer, sender, receiver, device))
        except KeyboardInterrupt:
            interrupted = True
        return self._costs(interrupted)

    def _step(self, text: str, work: Callable[[], None]) -> None:
        self._progress(self._steps_done, self._num_steps, text)
        num_left = self._num_steps - self._steps_done
        self._step_end_s = time.monotonic() + self._remaining_s() / num_left
        work()
        self._steps_done += 1
        self._progress(self._steps_done, self._num_steps, text)

    def _remaining_s(self) -> float:
        """Return the remaining seconds of the time limit."""
        return max(0.0, self._end_s - time.monotonic())

    def _step_is_over(self) -> bool:
        """Return whether the step's time is over; the rest of its costs is then estimated."""
        return time.monotonic() >= self._step_end_s

    def _find_parts(self) -> None:
        request = self._request
        for group in self._groups:
            parts = supported_parts(self._model, request.supports[group.name], group.name)
            parts.sort(key=lambda part: -sum(count_work(part, n).operations for n in part.nodes))
            group.parts = parts[:MAX_PARTS]
        names = dict.fromkeys(
            p.name for group in self._groups for part in group.parts for p in part.inputs
        )
        affinity: dict[str, str] = {}
        for device in reversed(request.devices):
            affinity |= dict.fromkeys(request.supports[device.name], device.name)
        # One run of the model captures the inner values that its parts take as inputs.
        if len(affinity) == len(self._model.nodes):
            self._captured_values |= capture_inner_values(
                request.executor,
                self._model,
                affinity,
                request.configs,
                request.inputs,
                [name for name in names if name not in self._captured_values],
            )

    def _measure_group(self, group: DeviceGroup) -> None:
        """Time the parts of a device group; a failing device gets an error."""
        for index, part in enumerate(group.parts):
            inputs = part_inputs(part, self._captured_values)
            # The largest part is always measured: the estimates of the others are based on it.
            if inputs is None or (group.nodes and self._step_is_over()):
                continue
            now_s = time.monotonic()
            fair_s = (self._step_end_s - now_s) / (len(group.parts) - index)
            until_s = now_s + min(MAX_TIMING_S, fair_s)
            config = self._request.configs.get(group.name, {})
            try:
                timing = time_model(
                    self._request.executor, group.name, part, inputs, config, until_s
                )
            except (DeviceError, ClusterError) as error:
                group.error = f"{type(error).__name__}: {error}"
                return
            except HeteroError as error:  # because of generated inputs, for example
                _log.warning("device=%s: a part of the model is estimated: %s", group.name, error)
                continue
            if index == 0:
                group.run_times_s.append(timing.run_s)
                group.disturbed |= {"nodes"} if timing.was_disturbed else set()
            group.fused_groups += find_fused_groups(part, timing.executed_nodes)
            for name, seconds in distribute_times(part, timing).items():
                group.nodes[name] = Time(seconds, "measured")

    def _measure_load(self) -> None:
        parts = []
        for group in self._groups:
            if any(group.run_times_s) and group.error is None:
                inputs = part_inputs(group.parts[0], self._captured_values)
                if inputs is not None:
                    parts.append((group, inputs))
        # The load matters most for plans, so it gets up to half of the remaining time.
        half_s = self._remaining_s() / 2
        if half_s:
            measure_load(self._request, parts, half_s)

    def _pairs(self) -> list[tuple[DeviceGroup, DeviceGroup, str]]:
        """Return the pairs of groups, each with a receiving device other than the sender."""
        return [
            (sender, receiver, device)
            for sender in self._groups
            for receiver in self._groups
            for device in [d.name for d in receiver.devices if d is not sender.devices[0]][:1]
        ]

    def _measure_transfer(self, sender: DeviceGroup, receiver: DeviceGroup, device: str) -> None:
        if not (sender.error or receiver.error or self._step_is_over()):
            with suppress(HeteroError):
                self._transfers[sender.name, receiver.name] = measure_transfer(
                    self._request.executor,
                    sender.name,
                    device,
                    self._request.configs,
                    self._step_end_s,
                )

    def _costs(self, interrupted: bool) -> Costs:
        devices: dict[str, DeviceCosts] = {}
        missing: dict[str, str] = {}
        for group in self._groups:
            if group.error is None and interrupted and not group.nodes:
                group.error = "not measured: profiling was interrupted"
            if group.error is not None:
                missing |= {d.name: group.error for d in group.devices}
                continue
            core_sharing_factor = self._core_sharing_factor(group)
            rounds = [group.single_rounds, group.concurrent_rounds]
            if any(map(rounds_disagree, rounds)):
                group.disturbed.add("load")
                rounds = [[], []]
            single_load, concurrent_load = map(fit_load_factors, rounds)
            # With all devices at work, the cores are shared as well.
            time_factor = concurrent_load.time_factor * core_sharing_factor
            nodes = self._complete_node_times(group)
            for device in group.devices:
                devices[device.name] = DeviceCosts(
                    identity=replace(group.identity, node=device.node),
                    nodes=nodes,
                    core_sharing_factor=core_sharing_factor,
                    single_load=single_load,
                    concurrent_load=replace(concurrent_load, time_factor=time_factor),
                    fused_groups=tuple(group.fused_groups),
                    disturbed_measurements=tuple(sorted(group.disturbed)),
                )
        return Costs(
            model=self._model.name,
            model_hash=self._request.model.content_hash,
            shapes=self._shapes,
            devices=devices,
            transfers=self._expand_transfers(devices),
            missing=missing,
            interrupted=interrupted,
            measured_at=self._measured_at,
        )

    def _core_sharing_factor(self, group: DeviceGroup) -> float:
        """Return the slowdown of a device while idle devices reserve a share of the cores.

        If the device keeps all its cores, these runs are also samples of its run time.
        """
        num_threads = self._request.configs.get(group.name, {}).get("INFERENCE_NUM_THREADS", 0)
        run_times_s = [latency.run_s for latency in group.latencies]
        if int(num_threads or 0) or group.identity.num_threads == 1 or not run_times_s:
            group.run_times_s += run_times_s
            return 1.0
        return max(1.0, low_percentile(run_times_s) / low_percentile(group.run_times_s))

    def _complete_node_times(self, group: DeviceGroup) -> dict[str, Time]:
        """Return the measured node times, with estimates for the other supported nodes."""
        model, supported = self._model, self._request.supports[group.name]
        request_nodes = (model.nodes[p] for p in request_dependent_positions(model))
        works = {
            node.name: count_work(model, node) for node in request_nodes if node.name in supported
        }
        # The node times belong to the first run-time sample; scale them to the percentile.
        samples = group.run_times_s
        factor = low_percentile(samples) / samples[0] if any(samples) else 1.0
        measured = {n: Time(t.seconds * factor, t.source) for n, t in group.nodes.items()}
        speed = fit_speed((works[n], t.seconds) for n, t in measured.items() if n in works)
        return {
            name: measured.get(name) or Time(speed(work), "estimated")
            for name, work in works.items()
        }

    def _expand_transfers(self, devices: Mapping[str, Any]) -> dict[tuple[str, str], Transfer]:
        group_of = {device.name: group for group in self._groups for device in group.devices}
        transfers = {
            (a, b): self._transfers.get((group_of[a].name, group_of[b].name), DEFAULT_TRANSFER)
            for a in devices
            for b in devices
            if a != b
        }
        for device in devices:
            group = group_of[device]
            sends = [latency.send_s for latency in group.latencies]
            returns = [latency.return_s for latency in group.latencies]
            transfers[CLIENT, device] = _client_transfer(sends, group, "inputs")
            transfers[device, CLIENT] = _client_transfer(returns, group, "outputs")
        return transfers


def _client_transfer(seconds: Sequence[float], group: DeviceGroup, ports: str) -> Transfer:
    """Return the transfer cost between the client and a device, from requests of the largest part.

    These transfers keep no device from computing.
    """
    if not seconds:
        return DEFAULT_TRANSFER
    per_byte = DEFAULT_TRANSFER.latency.b
    nbytes = sum(map(value_nbytes, getattr(group.parts[0], ports)))
    start_s = max(0.0, low_percentile(seconds) - per_byte * nbytes)
    return Transfer(LinearCost(start_s, per_byte, "calibrated"), LinearCost(0.0, 0.0, "estimated"))
