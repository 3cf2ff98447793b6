"""Variables: inputs of a model that take, from one run to the next, what an output gave."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hetero.devices.errors import (
    ArgumentError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.model import Model, header_with
from hetero.devices.model.tensor_spec import TensorSpec

#: The key of a model's metadata that declares its variables: {input: output}, as JSON.
STATES: Final = "hetero.states"


class Variable(NamedTuple):
    """A variable: the input that reads it, and the output that is its next value."""

    input: TensorSpec
    output: TensorSpec

    @property
    def name(self) -> str:
        """The input's name."""
        return self.input.name


def with_states(model: Model, states: Mapping[str, str]) -> Model:
    """Return the model with pairs of its inputs and outputs declared as variables, and no others.

    `states`: input -> output; ``*`` in an input stands for any text, in its output for the same.
    Raises as `variables_of` does.
    """
    if not isinstance(states, Mapping):
        raise ArgumentError(
            f'states={states!r}: wanted a dict of input and output names, as {{"past": "present"}}.'
        )
    declared = model.replace(header=header_with(model, {STATES: json.dumps(dict(states))}))
    variables_of(declared)
    return declared


def variables_of(model: Model) -> tuple[Variable, ...]:
    """Return the variables that a model declares in its metadata, in the order of its inputs.

    ModelError: the metadata is no JSON of names. ArgumentError: a pattern has more ``*`` in its
    output than in its input. TensorNameError: there is no such input or output. TensorTypeError,
    TensorShapeError: the two of a pair are not alike; open dimensions may differ.
    """
    if STATES not in model.metadata:
        return ()
    pairs: dict[str, str] = {}
    for pattern, target in _declared(model).items():
        pairs |= _matched(model, pattern, target)
    return tuple(_variable(model, p, pairs[p.name]) for p in model.inputs if p.name in pairs)


def visible_ports(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], variables: Sequence[Variable]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs without those of variables."""
    read = {variable.input.name for variable in variables}
    made = {variable.output.name for variable in variables}
    return (
        tuple(port for port in inputs if port.name not in read),
        tuple(port for port in outputs if port.name not in made),
    )


def _declared(model: Model) -> dict[str, str]:
    text = model.metadata[STATES]
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ModelError(
            f"model {model.name!r}: metadata {STATES} is {text[:80]!r}; wanted JSON of input and "
            'output names, as {"past.*": "present.*"}.'
        )
    return found


def _matched(model: Model, pattern: str, target: str) -> dict[str, str]:
    if target.count("*") > pattern.count("*"):
        raise ArgumentError(
            f"states {pattern!r}: {target!r}: each * of the output takes its text from one of the "
            "input."
        )
    expression = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))
    first, *rest = target.split("*")
    found = {}
    for port in model.inputs:
        if match := expression.fullmatch(port.name):
            texts = zip(match.groups(), rest, strict=False)
            found[port.name] = first + "".join(text + part for text, part in texts)
    if not found:
        raise TensorNameError(
            f"model {model.name!r}: no input for state {pattern!r}; it has "
            f"{', '.join(repr(port.name) for port in model.inputs)}.",
            name=pattern,
        )
    return found


def _variable(model: Model, port: TensorSpec, name: str) -> Variable:
    output = next((other for other in model.outputs if other.name == name), None)
    if output is None:
        raise TensorNameError(
            f"model {model.name!r}: state {port.name!r} has no output {name!r}; it has "
            f"{', '.join(repr(other.name) for other in model.outputs)}.",
            name=name,
        )
    where = f"model {model.name!r}: state {port.name!r} is {port}, its output {name!r} {output}"
    if port.dtype is None or port.type != output.type:
        raise TensorTypeError(
            f"{where}; wanted tensors of one type. Cast the output, or leave the pair out.",
            port=port.name,
        )
    if not port.partial_shape.compatible(output.partial_shape):
        raise TensorShapeError(
            f"{where}; wanted shapes that may be the same. Reshape the output, or leave the pair "
            "out.",
            port=port.name,
        )
    return Variable(port, output)
