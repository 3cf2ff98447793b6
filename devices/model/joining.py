"""Joins several models to one graph: outputs of earlier models become inputs of later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import onnx

from hetero.devices.errors import (
    ArgumentError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.model import Model
from hetero.devices.model.opset_conversion import upgrade_opset
from hetero.devices.model.ports import find_port
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec

#: Output -> the input, or inputs, that it is connected to.
Wires = Mapping[str, str | Sequence[str]]
#: Between the name of a model and that of its port, node or value.
SEPARATOR: Final = "/"


class _Port(NamedTuple):
    """A port of one of the models."""

    model: int
    spec: TensorSpec


def join_models(models: Sequence[Model], wires: Wires) -> Model:
    """Return one model of several, which runs them in order.

    Nodes and values get the name of their model as a prefix, such as ``detector/conv1``. A port
    keeps its name if no other port has it. Connected ports are no ports of the joined model.

    Parameters
    ----------
    models : sequence of Model
        The models; a wire leads from an earlier one to a later one.
    wires : mapping of str to str, or to a sequence of str
        Output -> the inputs that receive it. A name that several models have needs the model's
        name before it: ``detector/boxes``.

    Raises
    ------
    TensorNameError
        No such output or input, or several models have it.
    TensorTypeError, TensorShapeError
        The ends of a wire differ.
    ArgumentError
        A wire leads to the same or an earlier model, or an input has two wires.
    ModelError
        onnx cannot join the models.
    """
    if len(models) < 2:
        raise ArgumentError(f"join: expected at least 2 models, got {len(models)}.")
    models = _same_opset(models)
    names = _model_names(models)
    sources: dict[tuple[int, str], _Port] = {}
    for output_name, input_names in wires.items():
        source = _find(output_name, [model.outputs for model in models], names, "output")
        for input_name in [input_names] if isinstance(input_names, str) else input_names:
            target = _find(input_name, [model.inputs for model in models], names, "input")
            _check_wire(output_name, source, input_name, target)
            if (target.model, target.spec.name) in sources:
                raise ArgumentError(
                    f"wire {output_name!r} -> {input_name!r}: expected one wire to an input, got "
                    "two. Remove one of them."
                )
            sources[target.model, target.spec.name] = source
    port_names = _port_names(models, names, sources)
    joined = _merge(models, names, sources, port_names)
    joined.graph.name = " + ".join(names)
    return read_model(joined)


def _same_opset(models: Sequence[Model]) -> list[Model]:
    version = max(model.opset_imports.get("", 0) for model in models)
    return [
        upgrade_opset(model, version) if 0 < model.opset_imports.get("", 0) < version else model
        for model in models
    ]


def _model_names(models: Iterable[Model]) -> list[str]:
    """Return a unique name for each model."""
    counts: Counter[str] = Counter()
    names = []
    for model in models:
        counts[model.name] += 1
        count = counts[model.name]
        names.append(model.name if count == 1 else f"{model.name}.{count}")
    return names


def _find(
    name: str, ports: Sequence[Sequence[TensorSpec]], names: Sequence[str], role: str
) -> _Port:
    """Return the port of a name, with or without the name of its model."""
    named = [
        _Port(i, spec)
        for i, specs in enumerate(ports)
        for spec in specs
        if name in (spec.name, f"{names[i]}{SEPARATOR}{spec.name}")
    ]
    if len(named) == 1:
        return named[0]
    if not named:
        find_port([spec for specs in ports for spec in specs], name, role)
    choices = " or ".join(repr(f"{names[port.model]}{SEPARATOR}{port.spec.name}") for port in named)
    raise TensorNameError(
        f"wires: several models have an {role} {name!r}; write {choices}.", name=name
    )


def _check_wire(output_name: str, source: _Port, input_name: str, target: _Port) -> None:
    """Raise an error if the ends of a wire do not fit."""
    label = f"wire {output_name!r} -> {input_name!r}"
    if source.model >= target.model:
        raise ArgumentError(
            f"{label}: expected an output of an earlier model; list the models in the order in "
            "which they run."
        )
    if source.spec.type != target.spec.type:
        raise TensorTypeError(
            f"{label}: expected {target.spec}, got {source.spec}. Add a Cast to one of the models.",
            port=input_name,
        )
    sizes, expected = source.spec.shape, target.spec.shape
    if sizes is None or expected is None:
        return
    fits = len(sizes) == len(expected) and all(
        not isinstance(a, int) or not isinstance(b, int) or a == b
        for a, b in zip(sizes, expected, strict=True)
    )
    if not fits:
        raise TensorShapeError(
            f"{label}: expected {target.spec}, got {source.spec}. Add a Reshape to one of the "
            "models, or connect other ports.",
            port=input_name,
        )


def _port_names(
    models: Sequence[Model], names: Sequence[str], sources: Mapping[tuple[int, str], _Port]
) -> dict[tuple[int, str], str]:
    """Return the name of each port in the joined model, by model and name."""
    connected = {*sources, *((source.model, source.spec.name) for source in sources.values())}
    ports = dict.fromkeys(
        (i, spec.name) for i, model in enumerate(models) for spec in (*model.inputs, *model.outputs)
    )
    counts = Counter(name for key in ports if key not in connected for name in key[1:])
    return {
        (i, name): name
        if (i, name) not in connected and counts[name] == 1
        else f"{names[i]}{SEPARATOR}{name}"
        for i, name in ports
    }


def _merge(
    models: Sequence[Model],
    names: Sequence[str],
    sources: Mapping[tuple[int, str], _Port],
    port_names: Mapping[tuple[int, str], str],
) -> onnx.ModelProto:
    """Return the models as one, with all inner names prefixed."""
    ir_version = max(model.header.ir_version for model in models)

    def prefixed_model(i: int) -> onnx.ModelProto:
        ports = {name: new_name for (model, name), new_name in port_names.items() if model == i}
        proto = _add_prefix(models[i], names[i], ports)
        proto.ir_version = ir_version
        return proto

    joined = prefixed_model(0)
    for i in range(1, len(models)):
        io_map = [
            (port_names[source.model, source.spec.name], port_names[i, input_name])
            for (target, input_name), source in sources.items()
            if target == i
        ]
        next_model = prefixed_model(i)
        # Outputs that later models read must stay until then.
        needed = {
            port_names[source.model, source.spec.name]
            for (target, _), source in sources.items()
            if target > i
        }
        ends = {output for output, _ in io_map} - needed
        outputs = [o.name for o in joined.graph.output if o.name not in ends]
        outputs += [o.name for o in next_model.graph.output]
        try:
            joined = onnx.compose.merge_models(joined, next_model, io_map, outputs=outputs)
        except (ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(f"join: onnx cannot join {names[i]!r}: {error}.") from error
    return joined


def _add_prefix(model: Model, name: str, ports: Mapping[str, str]) -> onnx.ModelProto:
    """Return a model with other names of its ports, and a prefix before all other names."""
    proto = model.to_proto()
    del proto.metadata_props[:]
    values = {value for node in model.nodes for value in (*node.reads, *node.writes)}
    name_map = {value: f"{name}{SEPARATOR}{value}" for value in {*values, *model.constants}}
    graph = onnx.compose.add_prefix_graph(
        proto.graph,
        f"{name}{SEPARATOR}",
        rename_inputs=False,
        rename_outputs=False,
        rename_initializers=False,
        rename_value_infos=False,
        name_map=name_map | dict(ports),
    )
    proto.graph.CopyFrom(graph)
    return proto
