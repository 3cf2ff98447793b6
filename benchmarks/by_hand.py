"""Two-stage pipelines: hetero against the code that an engineer would write for the same cut.

A network is cut in two where half of its work is done. By hand, two plain onnxruntime sessions run
in two threads with ``queue.Queue`` ("threads"), and in two processes with pipes ("processes").
hetero runs the same cut on ORT.0 and ORT.1, in process and on Ray. Every session has one thread.
Ratios compare in process with threads, and Ray with processes. ``cpu_ms`` is the processor time of
a request, over all processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx

import hetero
from benchmarks.networks import NETWORKS
from benchmarks.null_models import submit_to
from benchmarks.processes import descendants
from benchmarks.sessions import bare_session, source
from benchmarks.tables import names, numbers, print_rows
from benchmarks.timing import Submit, Timing, by_turns, measure
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.measure.sample_inputs import sample_inputs
from hetero.partition.partition import partition
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work

#: Seconds after which a pipeline written by hand has failed.
_TIME_LIMIT_S: Final = 60.0
_DEVICES: Final = ("ORT.0", "ORT.1")
#: hetero's executor -> the pipeline written by hand that it is compared with.
_PEERS: Final = {"inprocess": "threads", "ray": "processes"}

Tensors = Mapping[str, np.ndarray]


class Cut(NamedTuple):
    """A model in two parts.

    `affinity`: node name -> device.
    `parts`: the models of the stages, in order, and the tensors that each sends.
    """

    model: Model
    affinity: Mapping[str, str]
    parts: tuple[tuple[onnx.ModelProto, frozenset[str]], ...]


def cut_in_two(model: Model) -> Cut:
    """Cut a model after the node at which half of the estimated work is done.

    Nodes that compute weights, which onnxruntime does once, follow the nodes that read them.
    """
    nodes = [model.nodes[position] for position in request_dependent_positions(model)]
    done_s = list(accumulate(DEFAULT_SPEED(count_work(model, node)) for node in nodes))
    affinity = {
        node.name: _DEVICES[after_s > done_s[-1] / 2]
        for node, after_s in zip(nodes, done_s, strict=True)
    }
    for node in reversed(model.nodes):
        readers = (model.nodes[r].name for v in node.writes for r in model.consumers.get(v, ()))
        affinity.setdefault(node.name, next((affinity[name] for name in readers), _DEVICES[0]))
    subgraphs = partition(model, affinity).subgraphs
    if [subgraph.device for subgraph in subgraphs] != list(_DEVICES):
        raise RuntimeError(
            f"expected one subgraph on each of {', '.join(_DEVICES)}, got "
            f"{[subgraph.device for subgraph in subgraphs]}."
        )
    outputs = frozenset(port.name for port in model.outputs)
    first, second = subgraphs
    sent = (outputs.union(second.inputs), outputs)
    parts = zip((first.model.to_proto(), second.model.to_proto()), sent, strict=True)
    return Cut(model, affinity, tuple(parts))


def run_stage(
    model: onnx.ModelProto,
    required: frozenset[str],
    receive: Callable[[], Tensors | None],
    send: Callable[[Any], object],
) -> None:
    """Run a session on each set of tensors, until None arrives.

    `required`: the tensors to send: inputs of later stages, and outputs of the model.
    """
    session = bare_session(model, 1)
    inputs = [port.name for port in session.get_inputs()]
    outputs = [port.name for port in session.get_outputs()]
    while (tensors := receive()) is not None:
        results = session.run(outputs, {name: tensors[name] for name in inputs})
        available = {**tensors, **dict(zip(outputs, results, strict=True))}
        send({name: value for name, value in available.items() if name in required})
    send(None)


@contextmanager
def threads(
    parts: Sequence[tuple[onnx.ModelProto, frozenset[str]]], inputs: Tensors
) -> Iterator[Submit]:
    """Run each part in a thread; queues connect the threads."""
    queues: list[queue.Queue[Any]] = [queue.Queue() for _ in range(len(parts) + 1)]
    workers = [
        threading.Thread(target=run_stage, args=(*part, before.get, after.put))
        for part, (before, after) in zip(parts, pairwise(queues), strict=True)
    ]
    for worker in workers:
        worker.start()

    def submit() -> Callable[[], Tensors]:
        queues[0].put(inputs)
        return partial(queues[-1].get, timeout=_TIME_LIMIT_S)

    try:
        yield submit
    finally:
        queues[0].put(None)
        for worker in workers:
            worker.join()


def _run_in_process(
    model: bytes, required: frozenset[str], receiver: Connection, sender: Connection
) -> None:
    run_stage(onnx.ModelProto.FromString(model), required, receiver.recv, sender.send)


@contextmanager
def processes(
    parts: Sequence[tuple[onnx.ModelProto, frozenset[str]]], inputs: Tensors
) -> Iterator[Submit]:
    """Run each part in a process; pipes connect the processes."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(len(parts) + 1)]
    workers = [
        context.Process(
            target=_run_in_process, args=(part.SerializeToString(), required, before[0], after[1])
        )
        for (part, required), (before, after) in zip(parts, pairwise(pipes), strict=True)
    ]
    for worker in workers:
        worker.start()
    receiver = pipes[-1][0]

    def wait() -> Tensors:
        if not receiver.poll(_TIME_LIMIT_S):
            raise RuntimeError(f"no result of the pipeline in {_TIME_LIMIT_S:g} s")
        result: Tensors = receiver.recv()
        return result

    def submit() -> Callable[[], Tensors]:
        pipes[0][1].send(inputs)
        return wait

    try:
        yield submit
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        for end in (end for pipe in pipes for end in pipe):
            end.close()


#: Name -> pipeline written by hand.
BY_HAND: Final = {"threads": threads, "processes": processes}


def load_model(name: str) -> tuple[Model, Tensors]:
    """Return a light model or a network with random weights, and inputs."""
    if name not in NETWORKS:
        model = read_model(source(name))
        return model, dict(light_model_inputs(model))
    model = read_model(NETWORKS[name]())
    return model, dict(sample_inputs(model))


def processor_s() -> float:
    """Return the processor seconds of this process and its descendants."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each model and window on each executor, and by hand."""
    executors = names(options.executors)
    with ExitStack() as stack:
        cores = {
            kind: stack.enter_context(hetero.Core(kind, devices={"ORT": len(_DEVICES)}))
            for kind in executors
        }
        for name in names(options.models):
            model, inputs = load_model(name)
            cut = cut_in_two(model)
            with ExitStack() as ways:
                submits: dict[str, Submit] = {}
                for kind in executors:
                    peer = _PEERS[kind]
                    submits[peer] = ways.enter_context(BY_HAND[peer](cut.parts, inputs))
                    compiled = cores[kind].compile_model(
                        model,
                        f"HETERO:{','.join(_DEVICES)}",
                        {"INFERENCE_NUM_THREADS": 1, "VERIFY": "NO"},
                        affinity=cut.affinity,
                    )
                    submits[kind] = submit_to(ways.enter_context(compiled), inputs)
                check_results(cut, inputs, submits)
                for window in numbers(options.windows):
                    timings = by_turns(submits, window, options.seconds, options.rounds)
                    for way, timing in timings.items():
                        cpu_s = cpu_per_request(submits[way], window, options.seconds)
                        peer = timings[_PEERS.get(way, way)]
                        yield {
                            "model": name,
                            "window": window,
                            "way": way,
                            "p50_ms": round(timing.p50_ms, 3),
                            "requests_per_s": round(timing.rate, 2),
                            "rate_ratio": round(timing.rate / peer.rate, 3),
                            "cpu_ms": round(1e3 * cpu_s, 3),
                        }


def check_results(cut: Cut, inputs: Tensors, submits: Mapping[str, Submit]) -> None:
    """Compare a result of each variant with the whole model; RuntimeError if one differs."""
    session = bare_session(cut.model.to_proto(), 1)
    output = session.get_outputs()[0].name
    (expected,) = session.run([output], dict(inputs))
    for way, submit in submits.items():
        difference = float(np.abs(submit()()[output] - expected).max())
        if not difference <= 1e-3 * float(np.abs(expected).max()):
            raise RuntimeError(f"{way}: the result differs from the whole model's by {difference}")


def cpu_per_request(submit: Submit, window: int, seconds: float) -> float:
    """Return the processor seconds of a request, over all processes."""
    timing, before_s = Timing(), processor_s()
    measure(submit, window, seconds / 2, timing)
    return (processor_s() - before_s) / len(timing.latencies_s)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="resnet50,squeezenet,bert", help="light or random")
    parser.add_argument("--executors", default=",".join(_PEERS), help="executors of hetero")
    parser.add_argument("--windows", default="8", help="requests in flight")
    parser.add_argument("--seconds", type=float, default=5.0, help="per variant and case")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    print_rows(list(run(options)), options.json)


if __name__ == "__main__":
    main()
