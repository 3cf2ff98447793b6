"""State variables of a model: pairs of an input and the output with its next value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hetero.devices.errors import (
    ArgumentError,
    ModelError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.file_reader import DocumentError, parse_json
from hetero.devices.model.model import Model, header_with
from hetero.devices.model.tensor_spec import TensorSpec

#: The key of a model's metadata that declares its variables: {input: output}, as JSON.
STATES: Final = "hetero.states"


class Variable(NamedTuple):
    """A state variable: the input that reads its value, and the output with its next value."""

    input: TensorSpec
    output: TensorSpec

    @property
    def name(self) -> str:
        """The input's name."""
        return self.input.name


def with_states(model: Model, states: Mapping[str, str]) -> Model:
    """Return the model with these state variables declared instead of any others.

    `states` maps input names to output names. ``*`` in an input name matches any text; ``*`` in the
    output name stands for the same text. Raises the errors of `variables_of`.
    """
    if not isinstance(states, Mapping):
        raise ArgumentError(
            "states: expected a dict of input and output names such as "
            f'{{"past": "present"}}, got {states!r}.'
        )
    model_with_states = model.replace(header=header_with(model, {STATES: json.dumps(dict(states))}))
    variables_of(model_with_states)
    return model_with_states


def variables_of(model: Model) -> tuple[Variable, ...]:
    """Return the state variables that a model's metadata declares, in the order of its inputs.

    Raises
    ------
    ModelError
        The metadata is not a JSON object of names.
    ArgumentError
        A pattern has more ``*`` in its output than in its input.
    TensorNameError
        An input or output does not exist.
    TensorTypeError, TensorShapeError
        Input and output have different types or incompatible shapes.
    """
    if STATES not in model.metadata:
        return ()
    pairs: dict[str, str] = {}
    for pattern, target in _declared_states(model).items():
        pairs |= _match_inputs(model, pattern, target)
    return tuple(_variable(model, p, pairs[p.name]) for p in model.inputs if p.name in pairs)


def visible_ports(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], variables: Sequence[Variable]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs that do not belong to state variables."""
    state_inputs = {variable.input.name for variable in variables}
    state_outputs = {variable.output.name for variable in variables}
    return (
        tuple(port for port in inputs if port.name not in state_inputs),
        tuple(port for port in outputs if port.name not in state_outputs),
    )


def _declared_states(model: Model) -> dict[str, str]:
    """Return the mapping in the model's metadata: input pattern -> output pattern."""
    text = model.metadata[STATES]
    try:
        states = parse_json(text)
    except DocumentError:
        states = None
    if not isinstance(states, dict) or not all(isinstance(v, str) for v in states.values()):
        raise ModelError(
            f"model {model.name!r}: metadata {STATES}: expected a JSON object of input and output "
            f'names such as {{"past.*": "present.*"}}, got {text[:80]!r}.'
        )
    return states


def _match_inputs(model: Model, pattern: str, target: str) -> dict[str, str]:
    """Return input name -> output name for the inputs that match a pattern."""
    if target.count("*") > pattern.count("*"):
        raise ArgumentError(
            f"states {pattern!r}: {target!r}: expected at most as many * in the output as in the "
            "input, because each * of the output repeats the text of one in the input."
        )
    first, *rest = target.split("*")
    pairs = {}
    for port in model.inputs:
        if (texts := _starred_texts(pattern, port.name)) is not None:
            parts = zip(texts, rest, strict=False)
            pairs[port.name] = first + "".join(text + part for text, part in parts)
    if not pairs:
        raise TensorNameError(
            f"model {model.name!r}: no input matches state {pattern!r}; the inputs are "
            f"{', '.join(repr(port.name) for port in model.inputs)}.",
            name=pattern,
        )
    return pairs


def _starred_texts(pattern: str, name: str) -> list[str] | None:
    """Return the text of each ``*`` in a name, earlier ones as long as possible, if it matches.

    A regular expression could take exponential time.
    """
    first, *middle = pattern.split("*")
    if not middle:
        return [] if name == first else None
    last = middle.pop()
    if len(name) < len(first) + len(last) or not name.endswith(last) or not name.startswith(first):
        return None
    texts, end = list[str](), len(name) - len(last)
    for part in reversed(middle):
        if (at := name.rfind(part, len(first), end)) < 0:
            return None
        texts.append(name[at + len(part) : end])
        end = at
    return [name[len(first) : end], *reversed(texts)]


def _variable(model: Model, port: TensorSpec, name: str) -> Variable:
    output = next((other for other in model.outputs if other.name == name), None)
    if output is None:
        raise TensorNameError(
            f"model {model.name!r}: state {port.name!r}: no output is named {name!r}; the outputs "
            f"are {', '.join(repr(other.name) for other in model.outputs)}.",
            name=name,
        )
    context = f"model {model.name!r}: state {port.name!r} is {port}, its output {name!r} {output}"
    if port.dtype is None or port.type != output.type:
        raise TensorTypeError(
            f"{context}; expected tensors of the same type. Cast the output, or omit the pair.",
            port=port.name,
        )
    if not port.partial_shape.compatible(output.partial_shape):
        raise TensorShapeError(
            f"{context}; expected compatible shapes. Reshape the output, or omit the pair.",
            port=port.name,
        )
    return Variable(port, output)
