"""The NULL device: no computation; scripted time, memory, support and faults.

It serves tests and measurements of the planner and the scheduler. Its outputs are zeros of the
inferred shapes.
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
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor
from hetero.devices.plugin.support import Refusal

#: Scripted faults: `fail` raises an error, `die` kills the process, `hang` never returns.
_FAULTS: Final = ("fail", "die", "hang")
_PAYLOAD_FORMAT: Final = "null-1"


class NullTensor(RemoteTensor):
    """A tensor on a NULL device, which programs do not read."""

    def __init__(self, device: str, contents: np.ndarray) -> None:
        self.device = device
        self._contents = np.array(contents)
        self.shape = self._contents.shape
        self.dtype = self._contents.dtype

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return self._contents.copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Overwrite the contents with an array; TensorShapeError if its shape differs."""
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
    """A program that waits for the scripted time, and returns zeros.

    `model` needs only ports. `rows` are the nodes that it pretends to execute, `seconds` their
    times by name, and `constants` the outputs that are constants.
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
        self._memory = bytearray(int(config["NULL_MEMORY_NBYTES"]))
        self._runs = itertools.count(1)
        #: The kind of fault, and the number of the run that it affects.
        self._fault_kind, _, number = config["NULL_FAULT"].partition("@")
        self._faulty_run = int(number) if self._fault_kind else None
        #: Shape and type of each output if they are the same in every run.
        self._static_outputs = self._find_static_outputs()
        self.returns_new_memory = self._static_outputs is not None

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Wait for the sum of the nodes' times, and return zeros."""
        number = next(self._runs)
        if number == self._faulty_run:
            self._raise_fault(context)
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
        if self._static_outputs is not None:
            return list(itertools.starmap(np.zeros, self._static_outputs))
        values = {p.name: v for p, v in zip(self._model.inputs, inputs, strict=True)}
        sizes = _symbol_sizes(self._model.inputs, inputs)
        return [self._output(port, values, sizes) for port in self._model.outputs]

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Return whether a tensor is in a NULL device's memory."""
        return isinstance(tensor, NullTensor)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return a row for each node, in topological order."""
        return self._rows

    def export(self) -> Payload:
        """Return the rows, their times, and the constant outputs."""
        rows = [[row.name, row.layer_type, *row.original_names] for row in self._rows]
        header = {"format": _PAYLOAD_FORMAT, "seconds": self._seconds, "rows": rows}
        return Payload(header, self._constants)

    def _find_static_outputs(self) -> list[tuple[tuple[int, ...], np.dtype]] | None:
        exceptions = {p.name for p in self._model.inputs} | {*self._constants, *self._shapes}
        outputs = []
        for port in self._model.outputs:
            dtype, sizes = port.dtype, tuple(d for d in port.shape or () if isinstance(d, int))
            if dtype is None or dtype.hasobject or port.name in exceptions or sizes != port.shape:
                return None
            outputs.append((sizes, dtype))
        return outputs

    def _output(
        self, port: TensorSpec, values: Mapping[str, Value], sizes: Mapping[str, int]
    ) -> Value:
        if port.name in values:
            value = values[port.name]
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

    def _raise_fault(self, context: RunContext) -> None:
        if self._fault_kind == "fail":
            raise InferenceError(
                f"run {self._faulty_run} of model {self._model.name!r} failed as scripted by "
                f"NULL_FAULT={self._config['NULL_FAULT']}.",
                device=f"NULL.{self._config['DEVICE_ID']}",
            )
        if self._fault_kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # a hung device never returns, but a request on it can be cancelled
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
            "Time of a node in microseconds.",
            minimum=0,
            shapes_result=True,
        ),
        Property(
            "NULL_NODE_TIMES_US",
            dict,
            {},
            True,
            "Times in microseconds by node name or op:Type; the default is NULL_NODE_TIME_US.",
            shapes_result=True,
            minimum=0,
        ),
        Property(
            "NULL_BUSY", bool, False, True, "Whether runs keep a core busy instead of sleeping."
        ),
        Property(
            "NULL_SUPPORTED",
            tuple,
            ("*",),
            True,
            "Supported nodes: names, globs or op:Type.",
            shapes_result=True,
        ),
        Property(
            "NULL_UNSUPPORTED",
            tuple,
            (),
            True,
            "Exceptions from NULL_SUPPORTED: names, globs or op:Type.",
            shapes_result=True,
        ),
        Property(
            "NULL_DYNAMIC_SHAPES",
            bool,
            True,
            True,
            "Whether nodes with inputs or outputs of open sizes are supported.",
            shapes_result=True,
        ),
        Property(
            "NULL_OUTPUT_DIMENSION",
            int,
            1,
            True,
            "Size of output dimensions that the model leaves open.",
            minimum=0,
        ),
        Property(
            "NULL_OUTPUT_SHAPES",
            dict,
            {},
            True,
            "Shapes by output name, instead of the inferred ones.",
        ),
        Property(
            "NULL_MEMORY_NBYTES",
            int,
            0,
            True,
            "Memory in bytes that a compiled model allocates.",
            minimum=0,
        ),
        Property(
            "NULL_FAULT",
            str,
            "",
            True,
            "KIND@N: the N-th run of a compiled model raises an error (fail), kills its "
            "process (die) or never returns (hang).",
            pattern=rf"(({'|'.join(_FAULTS)})@[1-9]\d*)?",
        ),
    )

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse the nodes that the NULL_* properties exclude."""
        if not _matches(node, config["NULL_SUPPORTED"]):
            patterns = ", ".join(config["NULL_SUPPORTED"]) or "nothing"
            return Refusal("policy", f"NULL_SUPPORTED allows only {patterns}")
        if _matches(node, config["NULL_UNSUPPORTED"]):
            return Refusal("policy", f"NULL_UNSUPPORTED excludes {node.name}")
        for value in () if config["NULL_DYNAMIC_SHAPES"] else (*node.reads, *node.writes):
            spec = model.spec(value)
            if not spec.is_static:
                return Refusal(
                    "dynamic_shape",
                    f"NULL_DYNAMIC_SHAPES=NO requires static shapes; {value!r} is {spec}",
                )
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Compile to a program that waits for the nodes' scripted times."""
        rows = [
            ExecutedNode(node.name, node.op_type, i, "null", node.covers)
            for i, node in enumerate(model.nodes)
        ]
        seconds = {node.name: _seconds(node, config) for node in model.nodes}
        names = [port.name for port in model.outputs if port.name in model.constants]
        constants = {name: model.constants[name].array for name in names}
        return NullProgram(model, rows, seconds, constants, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Load an exported program; BlobError if another device exported the payload."""
        payload.check_format(_PAYLOAD_FORMAT, model.name)
        rows = [
            ExecutedNode(name, kind, i, "null", tuple(covers))
            for i, (name, kind, *covers) in enumerate(payload.header["rows"])
        ]
        return NullProgram(model, rows, payload.header["seconds"], payload.tensors, config)

    def create_context(self, config: Config | None = None) -> NullContext:
        """Return a context for the device's memory."""
        return NullContext(f"{self.name}.{self.effective_config(config)['DEVICE_ID']}")

    def version(self) -> str:
        """Return the version of the payload format."""
        return "1"

    def full_name(self, device_id: str) -> str:
        """Return a description of the device."""
        return "no compute: scripted time, memory and faults"


def _matches(node: Node, patterns: Sequence[str]) -> bool:
    """Return whether a node's name or operator matches one of the patterns."""
    return any(
        node.op_type == pattern[3:]
        if pattern.startswith("op:")
        else node.name == pattern or fnmatch.fnmatchcase(node.name, pattern)
        for pattern in patterns
    )


def _seconds(node: Node, config: Config) -> float:
    """Return the scripted time of a node."""
    times = config["NULL_NODE_TIMES_US"]
    by_type = times.get(f"op:{node.op_type}", config["NULL_NODE_TIME_US"])
    return float(times.get(node.name, by_type)) / 1e6


def _symbol_sizes(ports: Sequence[TensorSpec], inputs: Sequence[Value]) -> dict[str, int]:
    """Return the sizes of the symbolic dimensions of the inputs in a run."""
    return {
        symbol: length
        for port, value in zip(ports, inputs, strict=True)
        if isinstance(value, np.ndarray | RemoteTensor)
        for symbol, length in zip(port.shape or (), value.shape, strict=False)
        if isinstance(symbol, str)
    }
