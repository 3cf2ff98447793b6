"""The plan: which stage runs where, and which tensors cross between stages.

A plan is made once, when a model is compiled, and handed to the devices when it is deployed. It
holds names and types only; models, weights and options travel separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgpack

from hetero.devices.errors import BlobError, PlanError
from hetero.devices.model.tensor_spec import TensorSpec

#: First entry of the serialized form.
_FORMAT: Final = "hetero-plan"
#: Raised whenever the serialized form changes.
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A subgraph on its device.

    `inputs`, `outputs`: values it takes and gives, by their names in the whole model, in port
        order.
    """

    index: int
    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor that goes from one stage to another; once for each consumer."""

    tensor: str
    producer: int
    consumer: int


@dataclass(frozen=True)
class Plan:
    """A model cut into stages.

    `name`, `inputs`, `outputs`: the model's name and ports; an output may be listed twice.
    `stages`: each after every stage that it takes a value from.
    `passthrough`: inputs that are also outputs.
    `constant_outputs`: outputs that depend on no input and no node.
    `draws`: whether a node draws random numbers: a stage that runs again may make something else.
    Raises PlanError: a stage takes what is not there before it, a value is made twice, or an output
        has no source.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    stages: tuple[Stage, ...]
    passthrough: tuple[str, ...] = ()
    constant_outputs: tuple[str, ...] = ()
    draws: bool = False

    def __post_init__(self) -> None:
        given = {spec.name for spec in self.inputs}
        made: dict[str, int] = {}
        for i, stage in enumerate(self.stages):
            where = f"plan of {self.name!r}: stage {i} on {stage.device}"
            if stage.index != i:
                raise PlanError(f"{where} says that its index is {stage.index}.")
            for tensor in stage.inputs:
                if tensor not in given and tensor not in made:
                    raise PlanError(
                        f"{where} takes {tensor!r}, which is no input of the model and which no "
                        "stage before it makes; order stages so that each follows its producers.",
                        stage=i,
                        tensor=tensor,
                    )
            for tensor in stage.outputs:
                if tensor in given or tensor in made:
                    other = f"stage {made[tensor]}" if tensor in made else "the model's inputs"
                    raise PlanError(
                        f"{where} makes {tensor!r}, which {other} already gives.",
                        stage=i,
                        tensor=tensor,
                    )
                made[tensor] = i
        outputs = {spec.name for spec in self.outputs}
        for kind, names, allowed in (
            ("passthrough", self.passthrough, given & outputs),
            ("constant output", self.constant_outputs, outputs - given - set(made)),
        ):
            if wrong := [name for name in names if name not in allowed]:
                raise PlanError(f"plan of {self.name!r}: {wrong} cannot be a {kind}.")
        known = {*made, *self.passthrough, *self.constant_outputs}
        if missing := sorted(outputs - known):
            raise PlanError(
                f"plan of {self.name!r}: outputs {missing} have no source: no stage makes them, "
                "and they are neither passthrough nor constant.",
                tensors=missing,
            )

    @cached_property
    def producers(self) -> dict[str, int]:
        """Value name -> index of the stage that makes it."""
        return {tensor: stage.index for stage in self.stages for tensor in stage.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[int, ...]]:
        """Value name -> indices of the stages that take it, ascending; graph inputs included."""
        found: dict[str, list[int]] = {}
        for stage in self.stages:
            for tensor in dict.fromkeys(stage.inputs):
                found.setdefault(tensor, []).append(stage.index)
        return {tensor: tuple(readers) for tensor, readers in found.items()}

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """Every tensor that crosses, by producer, output position and consumer."""
        return tuple(
            Wire(tensor, stage.index, consumer)
            for stage in self.stages
            for tensor in stage.outputs
            for consumer in self.consumers.get(tensor, ())
        )

    @cached_property
    def crossing(self) -> tuple[tuple[int, str], ...]:
        """Every tensor that goes to another device, once, and the stage that makes it."""
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
        """Each stage's level: the most stages on a path before it."""
        levels: list[int] = []
        for stage in self.stages:
            before = [levels[self.producers[t]] for t in stage.inputs if t in self.producers]
            levels.append(1 + max(before, default=-1))
        return tuple(levels)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, each once, in port order."""
        return tuple(dict.fromkeys(spec.name for spec in self.outputs))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices that the plan uses, in order of first use."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    def to_bytes(self) -> bytes:
        """Return the plan as msgpack; equal plans give equal bytes."""
        body = [
            self.name,
            [pack_spec(spec) for spec in self.inputs],
            [pack_spec(spec) for spec in self.outputs],
            [[s.device, s.inputs, s.outputs, s.node_names] for s in self.stages],
            self.passthrough,
            self.constant_outputs,
            *([True] if self.draws else []),
        ]
        data: bytes = msgpack.packb([_FORMAT, _VERSION, body])
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Read what `to_bytes` wrote; BlobError if `data` is no plan, or one of another version."""
        try:
            form, version, body = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BlobError(f"not a plan: {error}.") from error
        if form != _FORMAT or version != _VERSION:
            raise BlobError(
                f"not a plan of version {_VERSION}: got {form!r} version {version!r}. Compile the "
                "model again with this version."
            )
        try:
            name, inputs, outputs, stages, passthrough, constant_outputs, *draws = body
            return cls(
                name,
                tuple(unpack_spec(spec) for spec in inputs),
                tuple(unpack_spec(spec) for spec in outputs),
                tuple(
                    Stage(i, device, tuple(takes), tuple(gives), tuple(nodes))
                    for i, (device, takes, gives, nodes) in enumerate(stages)
                ),
                tuple(passthrough),
                tuple(constant_outputs),
                draws == [True],
            )
        except (TypeError, ValueError) as error:
            raise BlobError(f"damaged plan: {error}.") from error


def pack_spec(spec: TensorSpec) -> list[Any]:
    """Return a type as [name, type, shape or None], and a layout where there is one."""
    layout = [spec.layout] if spec.layout else []
    return [spec.name, spec.type, None if spec.shape is None else list(spec.shape), *layout]


def unpack_spec(entry: list[Any]) -> TensorSpec:
    """Return the type that `pack_spec` packed."""
    name, kind, shape, *layout = entry
    return TensorSpec(name, kind, None if shape is None else tuple(shape), *layout)
