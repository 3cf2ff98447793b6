"""The NULL device: computes nothing, with scripted time, memory and faults.

Planner and scheduler are tested and measured on it. Its outputs are zeros of the inferred shapes.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Config, Property, PropertyTable
from hetero.devices.plugin.remote import RemoteContext, RemoteTensor
from hetero.devices.plugin.support import Refusal

#: What may go wrong: `fail` raises, `die` ends the process, `hang` never answers.
_FAULTS: Final = ("fail", "die", "hang")
_PAYLOAD_FORMAT: Final = "null-1"


class NullTensor(RemoteTensor):
    """A tensor on a NULL device that only copies go to and come from."""

    def __init__(self, device: str, contents: np.ndarray) -> None:
        self.device = device
        self._contents = np.array(contents)
        self.shape = self._contents.shape
        self.dtype = self._contents.dtype

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return self._contents.copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Take over an array's contents; TensorShapeError if its shape is another one."""
        self.check_shape(array)
        self._contents[...] = array


class NullContext(RemoteContext):
    """The memory of one NULL device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def from_host(self, array: np.ndarray) -> NullTensor:
        """Copy an array to the device."""
        return NullTensor(self.device, array)


class NullProgram(Program):
    """Waits, then gives zeros.

    Of the model only the ports are looked at; `rows` are what it pretends to execute, `seconds` how
    long each takes, `constants` outputs that are constants.
    """

    def __init__(
        self,
        model: Model,
        rows: Sequence[ExecutedNode],
        seconds: Mapping[str, float],
        constants: Mapping[str, np.ndarray],
        config: Config,
    ) -> None:
        self._model = model
        self._config = dict(config)
        self._rows = tuple(rows)
        self._constants = dict(constants)
        self._seconds = dict(seconds)
        self._total_s = sum(self._seconds.values())
        self._shapes: dict[str, list[int]] = config["NULL_OUTPUT_SHAPES"]
        self._held = bytearray(int(config["NULL_MEMORY_NBYTES"]))
        self._runs = itertools.count(1)
        #: What goes wrong, and in which run.
        self._kind, _, number = config["NULL_FAULT"].partition("@")
        self._faulty_run = int(number) if self._kind else None
        #: Shape and type of each output, where no run changes them.
        self._fixed = self._fixed_outputs()

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Wait as long as the nodes take together, then give zeros."""
        number = next(self._runs)
        if number == self._faulty_run:
            self._fault(context)
        if self._config["NULL_BUSY"]:
            end_s = time.perf_counter() + self._total_s
            while time.perf_counter() < end_s:
                context.check_cancelled()
        elif self._total_s:
            context.sleep(self._total_s)
        context.check_cancelled()
        if context.profile:
            for name, seconds in self._seconds.items():
                context.record(name, seconds)
        if self._fixed is not None:
            return [np.zeros(shape, dtype) for shape, dtype in self._fixed]
        given = {p.name: v for p, v in zip(self._model.inputs, inputs, strict=True)}
        sizes = _sizes(self._model.inputs, inputs)
        return [self._output(port, given, sizes) for port in self._model.outputs]

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Take the device's own tensors where they are."""
        return isinstance(tensor, NullTensor)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return every node, in order."""
        return self._rows

    def export(self) -> Payload:
        """Return the rows, their times, and outputs that are constants."""
        rows = [[row.name, row.layer_type, *row.original_names] for row in self._rows]
        header = {"format": _PAYLOAD_FORMAT, "seconds": self._seconds, "rows": rows}
        return Payload(header, self._constants)

    def _fixed_outputs(self) -> list[tuple[tuple[int, ...], np.dtype]] | None:
        elsewhere = {p.name for p in self._model.inputs} | {*self._constants, *self._shapes}
        fixed = []
        for port in self._model.outputs:
            dtype, sizes = port.dtype, tuple(d for d in port.shape or () if isinstance(d, int))
            if dtype is None or dtype.hasobject or port.name in elsewhere or sizes != port.shape:
                return None
            fixed.append((sizes, dtype))
        return fixed

    def _output(
        self, port: TensorSpec, given: Mapping[str, Value], sizes: Mapping[str, int]
    ) -> Value:
        if port.name in given:
            value = given[port.name]
            return value.to_host() if isinstance(value, RemoteTensor) else value
        if port.name in self._constants:
            return self._constants[port.name]
        if not port.is_tensor or port.dtype is None:
            return [] if port.type.startswith("seq(") else None
        shape = self._shapes.get(port.name)
        if shape is None:
            length = self._config["NULL_OUTPUT_DIMENSION"]
            shape = [
                d if isinstance(d, int) else sizes.get(d or "", length) for d in port.shape or ()
            ]
        return np.full(shape, "", object) if port.dtype.kind == "O" else np.zeros(shape, port.dtype)

    def _fault(self, context: RunContext) -> None:
        if self._kind == "fail":
            raise InferenceError(
                f"NULL is set to fail on run {self._faulty_run} of model {self._model.name!r}: "
                f"NULL_FAULT={self._config['NULL_FAULT']}.",
                device=f"NULL.{self._config['DEVICE_ID']}",
            )
        if self._kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # a hung device answers nothing, but lets itself be cancelled
            context.sleep(0.05)


class NullPlugin(Plugin):
    """The device ``NULL``."""

    name: ClassVar[str] = "NULL"
    automatic: ClassVar[bool] = False
    computes: ClassVar[bool] = False
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        Property(
            "NULL_NODE_TIME_US",
            float,
            0.0,
            True,
            "Microseconds that a node takes.",
            minimum=0,
            shapes_result=True,
        ),
        Property(
            "NULL_NODE_TIMES_US",
            dict,
            {},
            True,
            "Microseconds by node name, or by op:Type; others take NULL_NODE_TIME_US.",
            shapes_result=True,
            minimum=0,
        ),
        Property(
            "NULL_BUSY", bool, False, True, "Whether it keeps a core busy rather than sleeps."
        ),
        Property(
            "NULL_SUPPORTED",
            tuple,
            ("*",),
            True,
            "Nodes that it takes: names, globs or op:Type.",
            shapes_result=True,
        ),
        Property(
            "NULL_UNSUPPORTED",
            tuple,
            (),
            True,
            "Nodes that it refuses even so: names, globs or op:Type.",
            shapes_result=True,
        ),
        Property(
            "NULL_DYNAMIC_SHAPES",
            bool,
            True,
            True,
            "Whether it takes nodes that read or make values of open sizes.",
            shapes_result=True,
        ),
        Property(
            "NULL_OUTPUT_DIMENSION",
            int,
            1,
            True,
            "Length of output dimensions that the model leaves open.",
            minimum=0,
        ),
        Property("NULL_OUTPUT_SHAPES", dict, {}, True, "Shapes by output name."),
        Property(
            "NULL_MEMORY_NBYTES",
            int,
            0,
            True,
            "Bytes that a compiled model holds.",
            minimum=0,
        ),
        Property(
            "NULL_FAULT",
            str,
            "",
            True,
            "KIND@N: the N-th run of a compiled model fails (fail), ends its process (die) or "
            "never answers (hang).",
            pattern=rf"(({'|'.join(_FAULTS)})@[1-9]\d*)?",
        ),
    )

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse what the script says."""
        if not _matches(node, config["NULL_SUPPORTED"]):
            patterns = ", ".join(config["NULL_SUPPORTED"]) or "nothing"
            return Refusal("policy", f"NULL is set to take only {patterns}")
        if _matches(node, config["NULL_UNSUPPORTED"]):
            return Refusal("policy", f"NULL is set to refuse {node.name}")
        for value in () if config["NULL_DYNAMIC_SHAPES"] else (*node.reads, *node.writes):
            spec = model.spec(value)
            if not spec.is_static:
                return Refusal(
                    "dynamic_shape", f"NULL is set to take fixed shapes only; {value!r} is {spec}"
                )
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Note how long each node is to take."""
        rows = [
            ExecutedNode(node.name, node.op_type, i, "null", node.covers)
            for i, node in enumerate(model.nodes)
        ]
        seconds = {node.name: _seconds(node, config) for node in model.nodes}
        names = [port.name for port in model.outputs if port.name in model.constants]
        given = {name: model.constants[name].array for name in names}
        return NullProgram(model, rows, seconds, given, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make the program again; BlobError if the payload is another device's."""
        payload.check_format(_PAYLOAD_FORMAT, model.name)
        rows = [
            ExecutedNode(name, kind, i, "null", tuple(covers))
            for i, (name, kind, *covers) in enumerate(payload.header["rows"])
        ]
        return NullProgram(model, rows, payload.header["seconds"], payload.tensors, config)

    def create_context(self, config: Config | None = None) -> NullContext:
        """Return the device's memory."""
        return NullContext(f"{self.name}.{self.effective_config(config)['DEVICE_ID']}")

    def version(self) -> str:
        """Return the version of its payloads."""
        return "1"

    def full_name(self, device_id: str) -> str:
        """Return what it is."""
        return "no compute: scripted time, memory and faults"


def _matches(node: Node, patterns: Sequence[str]) -> bool:
    return any(
        node.op_type == pattern[3:]
        if pattern.startswith("op:")
        else node.name == pattern or fnmatch.fnmatchcase(node.name, pattern)
        for pattern in patterns
    )


def _seconds(node: Node, config: Config) -> float:
    times = config["NULL_NODE_TIMES_US"]
    by_type = times.get(f"op:{node.op_type}", config["NULL_NODE_TIME_US"])
    return float(times.get(node.name, by_type)) / 1e6


def _sizes(ports: Sequence[TensorSpec], inputs: Sequence[Value]) -> dict[str, int]:
    """Return the lengths that symbols of the inputs' shapes have in a run."""
    return {
        symbol: length
        for port, value in zip(ports, inputs, strict=True)
        if isinstance(value, np.ndarray | RemoteTensor)
        for symbol, length in zip(port.shape or (), value.shape, strict=False)
        if isinstance(symbol, str)
    }
