"""Predicted costs of a partition: busy times of stages, times of wires, latency of a request."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.partition.partition import Partition, Subgraph
from hetero.planning.cost.costs import CLIENT
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.plan_report import StagePrediction, WirePrediction
from hetero.planning.task import Task, node_time, transfer_cost


def predict_stages(
    task: Task, partition: Partition, replica: int = 0, *, concurrent: bool = True
) -> list[StagePrediction]:
    """Predict how long each stage keeps its device busy per request.

    `replica`: index of the replica in the plan's report.
    `concurrent`: whether other devices work at the same time.
    """
    spec = task.model.spec
    device_of = [s.device for s in partition.subgraphs]
    producer_of = {value: s.index for s in partition.subgraphs for value in s.outputs}
    receivers_of: dict[str, set[str]] = {}
    for wire in partition.wires:
        if device_of[wire.consumer] != device_of[wire.producer]:
            receivers_of.setdefault(wire.tensor, set()).add(device_of[wire.consumer])
    model_outputs = {port.name for port in task.model.outputs}
    received: set[tuple[str, str]] = set()

    def busy_s(sender: str, receiver: str, value: str) -> float:
        line = transfer_cost(task.costs, sender, receiver, "THROUGHPUT")
        return line(value_nbytes(spec(value)))

    stages = []
    for s in partition.subgraphs:
        costs = task.costs.devices[s.device]
        load = costs.concurrent_load if concurrent else costs.single_load
        transfer_s = 0.0
        for value in s.inputs:
            producer = producer_of.get(value)
            sender = CLIENT if producer is None else device_of[producer]
            # A device receives a value once, also for several stages.
            if sender != s.device and (value, s.device) not in received:
                received.add((value, s.device))
                transfer_s += busy_s(sender, s.device, value)
        for value in s.outputs:
            if receivers := receivers_of.get(value):
                transfer_s += max(busy_s(s.device, d, value) for d in receivers)
            if value in model_outputs:
                transfer_s += busy_s(s.device, CLIENT, value)
        stages.append(
            StagePrediction(
                index=s.index,
                device=s.device,
                nodes=len(s.node_names),
                run_s=_unloaded_s(task, s) * load.time_factor,
                transfer_s=transfer_s,
                overhead_s=load.overhead_s,
                replica=replica,
            )
        )
    return stages


def predict_wires(task: Task, partition: Partition, replica: int = 0) -> list[WirePrediction]:
    """Predict how long each tensor that crosses between stages is in transit.

    `replica`: index of the replica in the plan's report.
    """
    device_of = [s.device for s in partition.subgraphs]
    spec = task.model.spec
    return [
        WirePrediction(
            wire.tensor,
            wire.producer,
            wire.consumer,
            spec(wire.tensor).nbytes,
            _transit_s(task, device_of[wire.producer], device_of[wire.consumer], [wire.tensor]),
            replica,
        )
        for wire in partition.wires
    ]


def predict_latency(task: Task, partition: Partition, *, concurrent: bool = True) -> float:
    """Predict the seconds of a single request: its critical path through stages and transfers.

    The client sends the inputs to the first stages. A stage starts when all its inputs have arrived
    and its device is free; stages of different devices run in parallel. The request ends when the
    last output reaches the client.

    `concurrent`: whether the other devices reserve their share of the cores.
    """
    device_of = [s.device for s in partition.subgraphs]
    producer_of = {value: s.index for s in partition.subgraphs for value in s.outputs}
    model_outputs = {port.name for port in task.model.outputs}
    end_s: list[float] = []
    device_free_s: dict[str, float] = {}
    latency_s = 0.0
    for s in partition.subgraphs:
        start_s = device_free_s.get(s.device, 0.0)
        # All values between the client and a stage travel in one message.
        if from_client := [value for value in s.inputs if value not in producer_of]:
            start_s = max(start_s, _transit_s(task, CLIENT, s.device, from_client))
        for value in s.inputs:
            if (producer := producer_of.get(value)) is not None:
                transit_s = _transit_s(task, device_of[producer], s.device, [value])
                start_s = max(start_s, end_s[producer] + transit_s)
        sharing = task.costs.devices[s.device].core_sharing_factor if concurrent else 1.0
        end_s.append(start_s + _unloaded_s(task, s) * sharing)
        device_free_s[s.device] = end_s[-1]
        to_client = [value for value in s.outputs if value in model_outputs]
        return_s = _transit_s(task, s.device, CLIENT, to_client) if to_client else 0.0
        latency_s = max(latency_s, end_s[-1] + return_s)
    return latency_s


def _unloaded_s(task: Task, subgraph: Subgraph) -> float:
    """Return the run time of a subgraph on its device, one request at a time."""
    costs = task.costs.devices[subgraph.device]
    times = (node_time(costs, name, "LATENCY") for name in subgraph.node_names)
    return sum(time.seconds for time in times if time is not None)


def _transit_s(task: Task, sender: str, receiver: str, values: Iterable[str]) -> float:
    """Return the seconds that a message with some values takes from sender to receiver."""
    nbytes = sum(value_nbytes(task.model.spec(value)) for value in values)
    return transfer_cost(task.costs, sender, receiver, "LATENCY")(nbytes)
