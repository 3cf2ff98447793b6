"""What each stage and wire of a cut model is expected to take."""

from __future__ import annotations

from hetero.partition.partition import Partition
from hetero.planning.cost.costs import CLIENT
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.plan_report import StagePrediction, WirePrediction
from hetero.planning.task import Task, node_seconds, way


def predict(
    task: Task, parts: Partition, variant: int = 0, *, company: bool = True
) -> tuple[list[StagePrediction], list[WirePrediction], float]:
    """Return what each stage and wire of a partition is expected to take, and one request alone.

    One request goes from the client to the first stages, through stages and wires, each stage when
    all its inputs are there and its device is free, and back to the client with its last output.
    Stages of different devices run side by side.

    `company`: whether other devices work at the same time.
    """
    model, costs = task.model, task.costs.devices

    def busy(sender: str, receiver: str, nbytes: int) -> float:
        """Seconds that a device is busy with a tensor."""
        return way(task.costs, sender, receiver, "THROUGHPUT")(nbytes)

    def takes(sender: str, receiver: str, nbytes: int) -> float:
        """Seconds that a tensor is on its way."""
        return way(task.costs, sender, receiver, "LATENCY")(nbytes)

    device_of = [s.device for s in parts.subgraphs]
    made_by = {v: s.index for s in parts.subgraphs for v in s.outputs}
    goes_to: dict[str, set[str]] = {}
    for wire in parts.wires:
        if device_of[wire.consumer] != device_of[wire.producer]:
            goes_to.setdefault(wire.tensor, set()).add(device_of[wire.consumer])
    ends = {port.name for port in model.outputs}
    received: set[tuple[str, str]] = set()
    stages: list[StagePrediction] = []
    #: When the stages of a request alone are done, and when its devices are free again.
    done_s: list[float] = []
    free_s: dict[str, float] = {}
    answered_s = 0.0
    for s in parts.subgraphs:
        cost = costs[s.device]
        alone = [t for n in s.node_names if (t := node_seconds(cost, n, "LATENCY")) is not None]
        own_s = sum(t.seconds for t in alone)
        pace = cost.company if company else cost.alone
        transfer = 0.0
        start_s = free_s.get(s.device, 0.0)
        # What goes between the client and a stage goes in one message.
        given = [value_nbytes(model.spec(v)) for v in s.inputs if v not in made_by]
        if given:
            start_s = max(start_s, takes(CLIENT, s.device, sum(given)))
        for value in s.inputs:
            nbytes = value_nbytes(model.spec(value))
            source = made_by.get(value)
            sender = CLIENT if source is None else device_of[source]
            if sender != s.device and (value, s.device) not in received:
                received.add((value, s.device))
                transfer += busy(sender, s.device, nbytes)
            if source is not None:
                start_s = max(start_s, done_s[source] + takes(sender, s.device, nbytes))
        for value in s.outputs:
            nbytes = value_nbytes(model.spec(value))
            if receivers := goes_to.get(value):
                transfer += max(busy(s.device, d, nbytes) for d in receivers)
            if value in ends:
                transfer += busy(s.device, CLIENT, nbytes)
        stages.append(
            StagePrediction(
                index=s.index,
                device=s.device,
                nodes=len(s.node_names),
                run_s=own_s * pace.load,
                transfer_s=transfer,
                overhead_s=pace.overhead_s,
                variant=variant,
            )
        )
        # Cores are shared whether or not the others have work.
        done_s.append(start_s + own_s * (cost.share if company else 1.0))
        free_s[s.device] = done_s[-1]
        taken = [value_nbytes(model.spec(v)) for v in s.outputs if v in ends]
        back_s = takes(s.device, CLIENT, sum(taken)) if taken else 0.0
        answered_s = max(answered_s, done_s[-1] + back_s)
    wires = [
        WirePrediction(
            w.tensor,
            w.producer,
            w.consumer,
            model.spec(w.tensor).nbytes,
            takes(device_of[w.producer], device_of[w.consumer], value_nbytes(model.spec(w.tensor))),
            variant,
        )
        for w in parts.wires
    ]
    return stages, wires, answered_s
