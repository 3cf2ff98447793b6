"""A plugin over numpy for scheduler tests: a few operators, and faults by node name.

A node called ``sleep_0.2…`` takes that long, ``meet_2_FOLDER?…`` notes in a folder that it runs and
waits until two runs are noted, ``refuse…`` raises a typed error, ``odd…`` returns an invalid value,
``die…`` kills its process, and a name of `EXCEPTIONS` raises that; after ``unbuilt_`` it does so as
it is compiled.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hetero.devices.errors import KernelError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import COMMON_PROPERTIES, OPTIONAL_PROPERTIES, Config
from hetero.devices.plugin.support import Refusal

OPERATORS = {
    "Add": np.add,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Identity": lambda x: x,
    "SequenceConstruct": lambda *items: list(items),
    "Relu": lambda x: np.maximum(x, 0),
}


class ToyProgram(Program):
    def __init__(self, model: Model, threads: int) -> None:
        self._model = model
        self._threads = threads

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        model = self._model
        values = {name: constant.array for name, constant in model.constants.items()}
        values |= {spec.name: value for spec, value in zip(model.inputs, inputs, strict=True)}
        for node in model.nodes:
            context.check_cancelled()
            start = time.perf_counter()
            self._misbehave(node, context)
            arguments = [values[name] for name in node.inputs]
            values[node.outputs[0]] = OPERATORS[node.op_type](*arguments)
            if node.name.startswith("odd"):
                values[node.outputs[0]] = threading.Lock()
            if context.profile:
                context.record(node.name, time.perf_counter() - start)
        return [values[spec.name] for spec in model.outputs]

    def _misbehave(self, node: Node, context: RunContext) -> None:
        if match := re.match(r"sleep_([\d.]+)", node.name):
            until = time.monotonic() + float(match[1])
            while time.monotonic() < until:
                context.check_cancelled()
                time.sleep(0.005)
        elif match := re.match(r"meet_(\d+)_([^?]+)", node.name):
            os.close(tempfile.mkstemp(dir=match[2])[0])
            while len([*Path(match[2]).iterdir()]) < int(match[1]):
                context.check_cancelled()
                time.sleep(0.005)
        raise_by_design(node.name)
        if node.name.startswith("refuse"):
            raise KernelError("by design", node=node.name, op_type=node.op_type, opset=17)
        if node.name.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        return tuple(
            ExecutedNode(node.name, node.op_type, i, "numpy", node.covers)
            for i, node in enumerate(self._model.nodes)
        )

    def export(self) -> Payload:
        weights = {name: constant.array for name, constant in self._model.constants.items()}
        return Payload({"threads": self._threads}, weights)


class MuteError(Exception):
    """An exception whose text raises."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("by design")

    __str__ = __repr__


class LockedError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("by design")
        self.lock = threading.Lock()


#: Prefix of node names -> exception of the node.
EXCEPTIONS = {
    "fail": ZeroDivisionError("by design"),
    "full": MemoryError("by design"),
    "exit": SystemExit(3),
    "generator": GeneratorExit("by design"),
    "interrupt": KeyboardInterrupt("by design"),
    "stop": StopIteration("by design"),
    "mute": MuteError(),
    "locked": LockedError(),
    "garbled": ValueError("by \ud800 design"),
    "endless": ValueError("by design" * 1_000_000),
}


def raise_by_design(name: str) -> None:
    for begin, error in EXCEPTIONS.items():
        if name.startswith(begin):
            raise error


class ToyPlugin(Plugin):
    name = "TOY"
    properties = COMMON_PROPERTIES.extended(OPTIONAL_PROPERTIES["INFERENCE_NUM_THREADS"])

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        if node.op_type in OPERATORS:
            return None
        return Refusal("no_kernel", f"no {node.op_type}")

    def compile(self, model: Model, config: Config) -> Program:
        for node in model.nodes:
            if node.name.startswith("unbuilt_"):
                raise_by_design(node.name.removeprefix("unbuilt_"))
        return ToyProgram(model, config["INFERENCE_NUM_THREADS"])

    def version(self) -> str:
        return "1.0"


class TwinPlugin(ToyPlugin):
    """The toy plugin with two device ids."""

    name = "TWIN"

    def device_ids(self) -> tuple[str, ...]:
        return ("0", "1")


class BrokenPlugin(ToyPlugin):
    name = "BROKEN"

    def __init__(self) -> None:
        raise ImportError("libbroken.so is missing; pip install broken")
