"""Plan: the stages of a model, their devices, and the tensors that cross between them.

A plan is made when a model is compiled, and sent to the devices at deployment. It contains only
names and types; models, weights and options are sent separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
from msgspec.msgpack import decode, encode

from hetero.devices.errors import BlobError, PlanError
from hetero.devices.model.tensor_spec import TensorSpec

#: First entry of the serialised form.
_FORMAT: Final = "hetero-plan"
#: Incremented with each change of the serialised form.
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A subgraph on its device.

    `inputs`, `outputs`: names of its values in the whole model, in port order.
    `work`: estimated seconds of a run; only the ratios between stages matter. Stages that differ
        only in it are equal.
    """

    index: int
    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node_names: tuple[str, ...]
    work: float = field(default=1.0, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor that crosses from one stage to another; one wire for each consumer."""

    tensor: str
    producer: int
    consumer: int


@dataclass(frozen=True)
class Plan:
    """A model split into stages.

    `name`, `inputs`, `outputs`: name and ports of the model; an output may be listed twice.
    `stages`: stages in topological order.
    `passthrough`: inputs that are also outputs.
    `constant_outputs`: outputs that depend on no input and no node.
    `draws`: whether a node draws random numbers, so that a replay may give another result.
    Raises PlanError: a stage reads a value that no earlier stage computes, a value is computed
        twice, or an output has no source.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    stages: tuple[Stage, ...]
    passthrough: tuple[str, ...] = ()
    constant_outputs: tuple[str, ...] = ()
    draws: bool = False

    def __post_init__(self) -> None:
        input_names = {spec.name for spec in self.inputs}
        producers: dict[str, int] = {}
        for i, stage in enumerate(self.stages):
            where = f"plan of {self.name!r}: stage {i} on {stage.device}"
            if stage.index != i:
                raise PlanError(f"{where} has index {stage.index}; expected {i}.")
            for tensor in stage.inputs:
                if tensor not in input_names and tensor not in producers:
                    raise PlanError(
                        f"{where} reads {tensor!r}, which is neither an input of the model nor an "
                        "output of an earlier stage; order the stages topologically.",
                        stage=i,
                        tensor=tensor,
                    )
            for tensor in stage.outputs:
                if tensor in input_names or tensor in producers:
                    other = "an input of the model"
                    if tensor in producers:
                        other = f"an output of stage {producers[tensor]}"
                    raise PlanError(
                        f"{where} computes {tensor!r}, which is already {other}.",
                        stage=i,
                        tensor=tensor,
                    )
                producers[tensor] = i
        outputs = {spec.name for spec in self.outputs}
        for kind, names, allowed in (
            ("passthrough", self.passthrough, input_names & outputs),
            ("constant output", self.constant_outputs, outputs - input_names - set(producers)),
        ):
            if invalid := [name for name in names if name not in allowed]:
                raise PlanError(f"plan of {self.name!r}: {invalid} cannot be a {kind}.")
        sources = {*producers, *self.passthrough, *self.constant_outputs}
        if missing := sorted(outputs - sources):
            raise PlanError(
                f"plan of {self.name!r}: outputs {missing} have no source: no stage computes them, "
                "and they are neither passthrough nor constant.",
                tensors=missing,
            )

    @cached_property
    def producers(self) -> dict[str, int]:
        """Value name -> index of the stage that computes it."""
        return {tensor: stage.index for stage in self.stages for tensor in stage.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[int, ...]]:
        """Value name -> indices of the stages that read it, ascending; including model inputs."""
        stages: dict[str, list[int]] = {}
        for stage in self.stages:
            for tensor in dict.fromkeys(stage.inputs):
                stages.setdefault(tensor, []).append(stage.index)
        return {tensor: tuple(indices) for tensor, indices in stages.items()}

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """All tensors that cross between stages, by producer, output position and consumer."""
        return tuple(
            Wire(tensor, stage.index, consumer)
            for stage in self.stages
            for tensor in stage.outputs
            for consumer in self.consumers.get(tensor, ())
        )

    @cached_property
    def cut_edges(self) -> tuple[tuple[int, str], ...]:
        """The cut edges between devices: producer stage and tensor, each once."""
        stages = self.stages
        return tuple(
            dict.fromkeys(
                (wire.producer, wire.tensor)
                for wire in self.wires
                if stages[wire.producer].device != stages[wire.consumer].device
            )
        )

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Level of each stage: the length of the longest path before it."""
        levels: list[int] = []
        for stage in self.stages:
            before = [levels[self.producers[t]] for t in stage.inputs if t in self.producers]
            levels.append(1 + max(before, default=-1))
        return tuple(levels)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in port order, without repetition."""
        return tuple(dict.fromkeys(spec.name for spec in self.outputs))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices that the plan uses, in order of first use."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    def to_bytes(self) -> bytes:
        """Serialise the plan as msgpack; equal plans give equal bytes."""
        body = [
            self.name,
            [pack_spec(spec) for spec in self.inputs],
            [pack_spec(spec) for spec in self.outputs],
            [_pack_stage(stage) for stage in self.stages],
            self.passthrough,
            self.constant_outputs,
            *([True] if self.draws else []),
        ]
        return encode([_FORMAT, _VERSION, body])

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Deserialise a plan.

        Raises BlobError: the data are not a plan, or of another version.
        """
        try:
            form, version, body = decode(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise BlobError(f"not a plan: {error}.") from error
        if form != _FORMAT or version != _VERSION:
            raise BlobError(
                f"expected a plan of version {_VERSION}, got {form!r} version {version!r}. Compile "
                "the model again with this version of hetero."
            )
        try:
            name, inputs, outputs, stages, passthrough, constant_outputs, *draws = body
            return cls(
                name,
                tuple(unpack_spec(spec) for spec in inputs),
                tuple(unpack_spec(spec) for spec in outputs),
                tuple(_unpack_stage(index, entry) for index, entry in enumerate(stages)),
                tuple(passthrough),
                tuple(constant_outputs),
                draws == [True],
            )
        except (TypeError, ValueError) as error:
            raise BlobError(f"damaged plan: {error}.") from error


def _pack_stage(stage: Stage) -> list[Any]:
    work = [] if stage.work == 1.0 else [stage.work]
    return [stage.device, stage.inputs, stage.outputs, stage.node_names, *work]


def _unpack_stage(index: int, entry: list[Any]) -> Stage:
    device, inputs, outputs, nodes, *work = entry
    return Stage(
        index, device, tuple(inputs), tuple(outputs), tuple(nodes), work=_parse_work(*work)
    )


def _parse_work(work: Any = 1.0) -> float:
    """Return the work of a stage; raise ValueError if it is not a finite, non-negative number."""
    if isinstance(work, float) and 0 <= work < math.inf:
        return work
    raise ValueError(f"expected the work of a stage as a non-negative number, got {work!r}")


def pack_spec(spec: TensorSpec) -> list[Any]:
    """Serialise a port as [name, type, shape or None], and its layout if it has one."""
    layout = [spec.layout] if spec.layout else []
    return [spec.name, spec.type, None if spec.shape is None else list(spec.shape), *layout]


def unpack_spec(entry: list[Any]) -> TensorSpec:
    """Deserialise a port.

    Raises ValueError: an entry has another type, or a size that ONNX does not have.
    """
    port = msgspec.convert(entry, _Port)
    return TensorSpec(port.name, port.type, port.shape, port.layout)


class _Port(msgspec.Struct, array_like=True):
    """The serialised form of a port."""

    name: str
    type: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | str | None, ...] | None
    layout: str = ""
