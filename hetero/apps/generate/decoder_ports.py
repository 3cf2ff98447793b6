"""Ports of a decoder: their roles, from names, types and the configuration next to the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    ModelError,
    ModelNotFoundError,
)
from hetero.devices.file_reader import FileReader
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import variables_of

_READER: Final = FileReader(
    "configuration", ModelError, "Download it again from the model's publisher."
)
#: Key of the model metadata that holds a `Decoder` as JSON.
KEY: Final = "hetero.decoder"
#: Role of an input -> the names that exporters give it.
ROLES: Final = {
    "ids": ("input_ids", "decoder_input_ids", "ids", "tokens"),
    "mask": ("attention_mask", "decoder_attention_mask"),
    "positions": ("position_ids", "cache_position"),
    "is_next": ("use_cache_branch",),
    "past_length": ("write_indices", "past_length", "past_seq_len"),
    "total_length": ("nonpad_kv_seqlen", "total_length", "total_seq_len"),
    "num_logits": ("num_logits_to_keep", "logits_to_keep"),
    "source": ("encoder_hidden_states", "encoder_attention_mask"),
}
#: Roles that several inputs may have.
_SHARED: Final = frozenset({"source"})
#: Parts of the names of an input and of the output that is its next value, by exporter.
_NEXT: Final = (
    ("past_key_values", "present"),  # optimum, onnxruntime-genai
    ("past_key_values", "present_key_values"),
    ("past_", "present_"),
    ("past", "present"),
    ("cache_in", "cache_out"),
    ("_in", "_out"),
)
#: Operators that compute the length of each row from the mask, assuming padding at the end.
_LENGTH_OPERATORS: Final = frozenset({"GroupQueryAttention"})
#: Operators between a mask, or positions, and a number derived from their length.
_SHAPE_OPERATORS: Final = frozenset(
    "Cast Gather Identity ReduceMax ReduceSum Reshape Shape Squeeze Unsqueeze".split()  # noqa: SIM905
)
#: Comparisons -> whether the result for the limit itself is that for smaller numbers of tokens, if
#: the number of tokens is the first operand, and if it is the second.
_COMPARISONS: Final = {
    "Greater": (True, False),
    "GreaterOrEqual": (False, True),
    "Less": (False, True),
    "LessOrEqual": (True, False),
}
#: Operators whose output has the elements of their input.
_ELEMENT_PRESERVING: Final = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)
#: Length of the KV cache for which decode steps are planned, if the context is not shorter.
_TYPICAL_PAST: Final = 1024


@dataclass(frozen=True, slots=True)
class Decoder:
    """Ports of a decoder, other than its KV caches, and properties of the model.

    Port names are empty if the model has no such port.

    `ids`, `logits`: token ids, [batch, length]; scores of the next token, [batch, length,
        `vocabulary`].
    `mask`: attention mask over cache and ids, [batch, past + length].
    `positions`: positions of the ids, [batch, length] or [length].
    `is_next`: whether the caches hold anything.
    `past_length`, `total_length`: number of tokens in the caches, without and with the ids,
        [batch] or a scalar; for TensorScatter and Attention of operator set 24.
    `num_logits`: number of newest ids for which logits are computed, a scalar.
    `token`, `sampling`, `seen`: ports of the sampling node; see `hetero.apps.generate.sampling`.
    `changes_at`: length beyond which the model computes differently, for example with another
        rotary embedding for long contexts; None if it does not.
    `context_length`: maximum tokens, including the prompt; None if unknown.
    `eos`: ids of end-of-sequence tokens.
    `sources`: inputs that hold the outputs of an encoder.
    `pads`: whether the mask may exclude the first positions, without moving tokens.
    `singly`: whether every run reads one token: the exported branch for later steps requires it.
    """

    ids: str
    logits: str
    vocabulary: int
    mask: str = ""
    positions: str = ""
    is_next: str = ""
    past_length: str = ""
    total_length: str = ""
    num_logits: str = ""
    token: str = ""
    sampling: str = ""
    seen: str = ""
    changes_at: int | None = None
    context_length: int | None = None
    eos: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    pads: bool = False
    singly: bool = False

    @classmethod
    def of(cls, model: Model) -> Decoder:
        """Read the ports from the metadata of a model that `hetero.read_decoder` made."""
        if KEY not in model.metadata:
            raise ArgumentError(
                f"model {model.name!r} was not read as a decoder: compile "
                "hetero.read_decoder(path) to generate with it, or serve it with --decoder."
            )
        try:
            return msgspec.json.decode(model.metadata[KEY], type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ModelError(
                f"model {model.name!r}: metadata {KEY} is {model.metadata[KEY][:80]!r}; expected "
                "the JSON that hetero.read_decoder writes. Read the model with it again."
            ) from error

    def text(self) -> str:
        """Return the metadata as JSON."""
        return msgspec.json.encode(self).decode()


def find_states(model: Model) -> dict[str, str]:
    """Return the pairs of input and output whose names are those of a KV cache."""
    outputs = {port.name for port in model.outputs}
    states = {}
    for port in model.inputs:
        names = (port.name.replace(before, after, 1) for before, after in _NEXT)
        target = next((n for n in names if n != port.name and n in outputs), None)
        if target is not None:
            states[port.name] = target
    return states


def find_ports(
    model: Model, role_overrides: Mapping[str, str], folder: Path | None, eos: Sequence[int] | None
) -> Decoder:
    """Determine the ports of a model with states.

    `role_overrides`: input or output -> role, if the names do not determine it.
    `folder`: folder of the configuration files.
    Raises ArgumentError: an input or the logits are not recognised, or an override is invalid.
    """
    states = {name for v in variables_of(model) for name in (v.input.name, v.output.name)}
    inputs = {port.name: port for port in model.inputs if port.name not in states}
    outputs = {port.name: port for port in model.outputs if port.name not in states}
    _check_overrides(model, role_overrides, {*inputs, *outputs})
    role_of_name = {name: role for role, names in ROLES.items() for name in names}
    roles = {name: role_of_name.get(name, "") for name in inputs} | dict(role_overrides)
    if unknown := [f"{name!r} ({inputs[name]})" for name, role in roles.items() if not role]:
        if not any(roles.values()):
            raise ArgumentError(
                f"model {model.name!r}: expected a decoder with an input of token ids "
                f"({', '.join(ROLES['ids'])}), got the inputs {', '.join(unknown)}. `hetero run` "
                "and Core.compile_model run any model. If it is a decoder, pass the roles of its "
                f"inputs to read_decoder: ports={{name: role}} with a role of {', '.join(ROLES)}."
            )
        raise ArgumentError(
            f"decoder {model.name!r}: the roles of inputs {', '.join(unknown)} are unknown. Pass "
            f"ports={{name: role}} with a role of {', '.join(ROLES)}, or states={{input: output}} "
            "for KV caches. A model that reads embeddings instead of token ids needs the embedding "
            "model in front: export both as one, or join them with onnx.compose.merge_models."
        )
    sources = tuple(name for name, role in roles.items() if role in _SHARED)
    port_of_role = {role: name for name, role in roles.items() if role not in _SHARED}
    if "ids" not in port_of_role or len(port_of_role) + len(sources) < len(roles):
        raise ArgumentError(
            f"decoder {model.name!r}: expected one input of token ids and at most one of each "
            f"other role, got {roles}. Correct them with ports={{name: role}}."
        )
    logits = _logits(model, outputs, port_of_role.pop("logits", None))
    assert logits.shape is not None
    size = logits.shape[-1]
    configuration = _read_configuration(folder)
    if not isinstance(size, int):
        size = configuration.get("vocab_size")
    if not isinstance(size, int):
        raise ArgumentError(
            f"decoder {model.name!r}: the size of the vocabulary is unknown: {logits} has an open "
            "last dimension, and there is no config.json next to the model. Export the model with "
            "a fixed last dimension."
        )
    ends = _numbers(configuration.get("eos_token_id")) if eos is None else checked_ids("eos", eos)
    return Decoder(
        logits=logits.name,
        vocabulary=size,
        changes_at=_changes_at(model, port_of_role),
        context_length=_context_length(model, port_of_role, configuration),
        eos=tuple(i for i in ends if 0 <= i < size),
        sources=sources,
        pads=_pads(model, port_of_role),
        singly=False,
        **port_of_role,
    )


def _changes_at(model: Model, port_of_role: Mapping[str, str]) -> int | None:
    """Return the number of tokens beyond which an `If` or `Where` of the model chooses otherwise.

    Examples are the rotary factors of decoders with a long context.
    """
    for node in model.nodes:
        if node.op_type not in ("If", "Where"):
            continue
        test = model.producer(node.inputs[0])
        while test is not None and (test.op_type in _ELEMENT_PRESERVING or test.op_type == "Not"):
            test = model.producer(test.inputs[0])
        if test is None or test.op_type not in _COMPARISONS:
            continue
        for position, includes_limit in enumerate(_COMPARISONS[test.op_type]):
            limit = _constant(model, test.inputs[1 - position])
            offset = _length_offset(model, test.inputs[position], port_of_role)
            if limit is not None and offset is not None:
                return limit - offset - (not includes_limit)
    return None


def _length_offset(model: Model, value: str, port_of_role: Mapping[str, str]) -> int | None:
    """Return by how much a value exceeds the number of tokens; None if it is another number."""
    offset = 0
    while (node := model.producer(value)) is not None:
        value = node.inputs[0]
        if node.op_type in ("Add", "Sub"):
            number = _constant(model, node.inputs[1])
            if number is None:
                return None
            offset += number if node.op_type == "Add" else -number
        elif node.op_type not in _SHAPE_OPERATORS:
            return None
    if value == port_of_role.get("mask"):
        return offset
    return offset - 1 if value == port_of_role.get("positions") else None


def _constant(model: Model, value: str) -> int | None:
    """Return the integer that a value always is, if it is known."""
    lower, upper = model.integer_ranges.get(value, (0, 1))
    if lower == upper:
        return lower
    constant = model.constants.get(value)
    return int(constant.array.item()) if constant is not None and constant.array.size == 1 else None


def _pads(model: Model, port_of_role: Mapping[str, str]) -> bool:
    """Whether positions are an input or follow from the mask, not from the length of the caches."""
    if "mask" not in port_of_role or any(node.op_type in _LENGTH_OPERATORS for node in model.nodes):
        return False
    if "positions" in port_of_role:
        return True
    summed = [node.inputs[0] for node in model.nodes if node.op_type == "CumSum"]
    while summed and port_of_role["mask"] not in summed:
        makers = [node for value in summed if (node := model.producer(value)) is not None]
        summed = [node.inputs[0] for node in makers if node.op_type in ("Cast", "Identity")]
    return bool(summed)


def _check_overrides(model: Model, overrides: Mapping[str, str], names: set[str]) -> None:
    roles = (*ROLES, "logits")
    for name, role in overrides.items():
        if name not in names or role not in roles:
            raise ArgumentError(
                f"decoder {model.name!r}: ports={{{name!r}: {role!r}}}; expected one of its ports "
                f"{', '.join(sorted(names))}, and one of the roles {', '.join(roles)}."
            )


def _logits(model: Model, outputs: Mapping[str, TensorSpec], name: str | None) -> TensorSpec:
    floats = [
        port
        for port in outputs.values()
        if port.dtype is not None and port.dtype.kind not in "biu" and len(port.shape or ()) == 3
    ]
    others = [port for port in floats if "hidden_state" not in port.name] if not name else []
    candidates = [p for p in floats if p.name == (name or "logits")] or others
    if len(candidates) != 1:
        names = ", ".join(map(str, outputs.values())) or "none"
        raise ArgumentError(
            f"decoder {model.name!r}: expected one output of logits, floats of [batch, length, "
            f"vocabulary]; its outputs other than states are {names}. Pass "
            "ports={name: 'logits'}, or export the model with its language model head (lm_head)."
        )
    return candidates[0]


#: Paths of a decoder in a published folder: of optimum, onnxruntime-genai and Transformers.js.
_FILE_NAMES: Final = (
    "model.onnx",
    "decoder_model_merged.onnx",
    "onnx/model.onnx",
    "onnx/decoder_model_merged.onnx",
)


def decoder_file(model: str | Path) -> str | Path:
    """Return the path of a decoder; for a folder, its file with a usual name.

    Raises ModelNotFoundError: the folder has no such file.
    """
    if not Path(model).is_dir():
        return model
    for name in _FILE_NAMES:
        if (path := Path(model, name)).is_file():
            return path
    raise ModelNotFoundError(
        f"{model} is a folder without {' or '.join(_FILE_NAMES)}; pass the decoder's .onnx file."
    )


def _read_configuration(folder: Path | None) -> dict[str, Any]:
    """Merge the configuration files next to a model; later files override earlier ones."""
    configuration: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json", "genai_config.json"):
        path = folder / name if folder else None
        if path is None or not path.exists():
            continue
        content = _READER.read_json(path)
        try:
            content = content["model"] if name.startswith("genai") else content
            configuration |= {key: value for key, value in content.items() if value is not None}
        except (LookupError, TypeError, AttributeError) as error:
            problem = f"not the configuration of a decoder: {error!r}"
            raise _READER.problem(path, problem) from error
    return configuration


def _context_length(
    model: Model, port_of_role: Mapping[str, str], configuration: Mapping[str, Any]
) -> int | None:
    """Return the smallest limit of the configuration, the caches and the position table."""
    names = (
        "context_length",
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_target_positions",
    )
    values = (configuration.get(name) for name in names)
    limits = [value for value in values if isinstance(value, int)][:1]
    if "past_length" in port_of_role:  # the length of caches that are written in place is fixed
        shapes = [variable.input.shape or () for variable in variables_of(model)]
        limits += [s[-2] for s in shapes if len(s) == 4 and isinstance(s[-2], int)]
    if "positions" in port_of_role:
        limits += _table_lengths(model, port_of_role["positions"])
    return min(limits, default=None)


def _table_lengths(model: Model, positions: str) -> list[int]:
    """Return the lengths of constant tables that are indexed by positions."""
    lengths: list[int] = []
    for node in (model.nodes[i] for i in model.consumers.get(positions, ())):
        if node.op_type in _ELEMENT_PRESERVING and node.inputs[0] == positions:
            lengths += _table_lengths(model, node.outputs[0])
        elif node.op_type == "Gather" and node.inputs[1] == positions:
            table = model.constants.get(node.inputs[0])
            if table is not None and not node.attributes.get("axis", 0):
                lengths += table.array.shape[:1]
    return lengths


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return checked_ids("eos_token_id", values)


def checked_ids(name: str, value: Any) -> list[int]:
    """Return the token ids of an argument.

    Raises ArgumentTypeError: it is not a list of integers.
    """
    ids: list[Any] = list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        raise ArgumentTypeError(
            f"{name}={value!r}: expected a list of token ids, for example [2, 7]."
        )
    return [int(i) for i in ids]


def step_shapes(
    model: Model, decoder: Decoder, past: int | None = None, size: int = 1
) -> dict[str, tuple[int, ...]]:
    """Return the input shapes of a decode step of one token, or of a prompt chunk.

    `past`: number of tokens in the KV caches; by default as many as the model takes, at most
        `_TYPICAL_PAST`.
    `size`: number of new tokens.
    """
    if past is None:
        past = min(decoder.context_length or _TYPICAL_PAST, _TYPICAL_PAST) - 1
    caches = {variable.name for variable in variables_of(model)}
    ids = next(port for port in model.inputs if port.name == decoder.ids)
    sizes = dict.fromkeys((d for d in ids.shape or () if isinstance(d, str)), 1)
    if ids.shape and isinstance(ids.shape[-1], str):
        sizes[ids.shape[-1]] = size
    shapes = {}
    for port in model.inputs:
        last = past if port.name in caches else past + size if port.name == decoder.mask else size
        shape = (d if isinstance(d, int) else sizes.get(d or "", last) for d in port.shape or ())
        shapes[port.name] = tuple(shape)
    return shapes
