"""What the ports of a decoder are, by their names and types, and what lies beside its file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from hetero.devices.errors import ArgumentError, ArgumentTypeError, ModelError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import variables_of

#: The key of a model's metadata that says what its ports are, as JSON: the fields of `Decoder`.
KEY: Final = "hetero.decoder"
#: What an input may be -> the names that exporters give it.
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
#: How an output is named after the input that reads it in the next step, by exporter.
_NEXT: Final = (
    ("past_key_values", "present"),  # optimum, onnxruntime-genai
    ("past_key_values", "present_key_values"),
    ("past_", "present_"),
    ("past", "present"),
    ("cache_in", "cache_out"),
    ("_in", "_out"),
)
#: Operators that make of a mask how long each text is, from its first token on.
_BY_LENGTH: Final = frozenset({"GroupQueryAttention"})
#: Operators by which a number is made of a mask's length.
_OF_LENGTH: Final = frozenset({"Shape", "Gather", "Squeeze", "Reshape", "Cast", "Identity"})
#: Operators that give the numbers that they read.
_PASSING: Final = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
#: Tokens for which steps are planned where neither the model nor its user says how many.
_PAST: Final = 1024


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's ports beside its caches, empty where there is none, and what it was trained for.

    `ids`, `logits`: token ids, [batch, length]; scores of what comes next, [batch, length,
        `vocabulary`].
    `mask`: which positions of caches and ids count, [batch, past + length].
    `positions`: where the ids are, [batch, length] or [length].
    `is_next`: whether caches hold something.
    `past_length`, `total_length`: how many tokens caches hold, and with the ids, [batch] or one
        number. Opset 24's TensorScatter and Attention want them.
    `num_logits`: for how many of the newest ids logits are wanted, one number.
    `token`, `sampling`, `seen`: the ports of the node that chooses; see
    `hetero.apps.generate.sampling`. `changes_at`: how many tokens are computed in one way, and in
    another once there are more, as by
        the two rotations of a long context; None where it is one way.
    `context_length`: the most tokens, prompt included; None where nothing says it.
    `eos`: tokens that end a text.
    `sources`: what each step is given as it is: what an encoder made.
    `pads`: whether the mask may leave out the first positions, and tokens keep their places.
    `singly`: whether a run may see one token alone: exporters follow later steps by such a one.
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
        """Return what a model's metadata says, if `hetero.read_decoder` made it."""
        if KEY not in model.metadata:
            raise ArgumentError(
                f"model {model.name!r} is not known as a decoder: compile "
                "hetero.read_decoder(path) to generate with it, or serve it with --decoder."
            )
        try:
            return msgspec.json.decode(model.metadata[KEY], type=cls)
        except msgspec.MsgspecError as error:
            raise ModelError(
                f"model {model.name!r}: metadata {KEY} is {model.metadata[KEY][:80]!r}, which "
                "hetero.read_decoder does not write; read the model with it again."
            ) from error

    def text(self) -> str:
        """Return the metadata."""
        return msgspec.json.encode(self).decode()


def find_states(model: Model) -> dict[str, str]:
    """Return input -> output of what looks like a state."""
    outputs = {port.name for port in model.outputs}
    found = {}
    for port in model.inputs:
        names = (port.name.replace(before, after, 1) for before, after in _NEXT)
        target = next((n for n in names if n != port.name and n in outputs), None)
        if target is not None:
            found[port.name] = target
    return found


def find_ports(
    model: Model, given: Mapping[str, str], folder: Path | None, eos: Sequence[int] | None
) -> Decoder:
    """Return what the ports of a model with states are.

    `given`: input or output -> role, where names do not say it.
    Raises ArgumentError: an input or the logits are not recognised, or `given` is wrong.
    """
    states = {name for v in variables_of(model) for name in (v.input.name, v.output.name)}
    inputs = {port.name: port for port in model.inputs if port.name not in states}
    outputs = {port.name: port for port in model.outputs if port.name not in states}
    _check_given(model, given, {*inputs, *outputs})
    known = {name: role for role, names in ROLES.items() for name in names}
    roles = {name: known.get(name, "") for name in inputs} | dict(given)
    if unknown := [f"{name!r} ({inputs[name]})" for name, role in roles.items() if not role]:
        raise ArgumentError(
            f"decoder {model.name!r}: what inputs {', '.join(unknown)} are is not known. Say it: "
            f"ports={{name: one of {', '.join(ROLES)}}}, or states={{input: output}} for what one "
            "step hands to the next. A model that reads embeddings instead of token ids wants the "
            "model that makes them before it: export both as one, or join them with "
            "onnx.compose.merge_models."
        )
    sources = tuple(name for name, role in roles.items() if role in _SHARED)
    named = {role: name for name, role in roles.items() if role not in _SHARED}
    if "ids" not in named or len(named) + len(sources) < len(roles):
        raise ArgumentError(
            f"decoder {model.name!r}: wanted one input of token ids and at most one of each other "
            f"role, found {roles}. Say which with ports={{name: role}}."
        )
    logits = _logits(model, outputs, named.pop("logits", None))
    assert logits.shape is not None
    size = logits.shape[-1]
    read = _read_configuration(folder)
    if not isinstance(size, int):
        size = read.get("vocab_size")
    if not isinstance(size, int):
        raise ArgumentError(
            f"decoder {model.name!r}: {logits} does not say how large the vocabulary is, nor does "
            "a config.json beside the model; export it with a fixed last dimension."
        )
    ends = _numbers(read.get("eos_token_id")) if eos is None else checked_ids("eos", eos)
    return Decoder(
        logits=logits.name,
        vocabulary=size,
        changes_at=_changes_at(model, named),
        context_length=_context_length(model, named, read),
        eos=tuple(i for i in ends if 0 <= i < size),
        sources=sources,
        pads=_pads(model, named),
        singly=False,
        **named,
    )


def _changes_at(model: Model, named: Mapping[str, str]) -> int | None:
    """Return the length of a mask beyond which branches are others."""
    tests = [model.producer(node.inputs[0]) for node in model.nodes if node.op_type == "If"]
    for test in tests:
        if test is None or test.op_type != "Greater":
            continue
        value, (least, most) = test.inputs[0], model.integer_ranges.get(test.inputs[1], (0, 1))
        while (node := model.producer(value)) is not None and node.op_type in _OF_LENGTH:
            value = node.inputs[0]
        if value == named.get("mask") and least == most:
            return least
    return None


def _pads(model: Model, named: Mapping[str, str]) -> bool:
    """Whether positions are told, or counted of the mask, and not of how long caches are."""
    if "mask" not in named or any(node.op_type in _BY_LENGTH for node in model.nodes):
        return False
    if "positions" in named:
        return True
    counted = [node.inputs[0] for node in model.nodes if node.op_type == "CumSum"]
    while counted and named["mask"] not in counted:
        makers = [node for value in counted if (node := model.producer(value)) is not None]
        counted = [node.inputs[0] for node in makers if node.op_type in ("Cast", "Identity")]
    return bool(counted)


def _check_given(model: Model, given: Mapping[str, str], names: set[str]) -> None:
    roles = (*ROLES, "logits")
    for name, role in given.items():
        if name not in names or role not in roles:
            raise ArgumentError(
                f"decoder {model.name!r}: ports={{{name!r}: {role!r}}}; wanted one of its ports "
                f"that are no states, {', '.join(sorted(names))}, as one of {', '.join(roles)}."
            )


def _logits(model: Model, outputs: Mapping[str, TensorSpec], name: str | None) -> TensorSpec:
    floats = [
        port
        for port in outputs.values()
        if port.dtype is not None and port.dtype.kind not in "biu" and len(port.shape or ()) == 3
    ]
    others = [port for port in floats if "hidden_state" not in port.name] if not name else []
    found = [p for p in floats if p.name == (name or "logits")] or others
    if len(found) != 1:
        listed = ", ".join(map(str, outputs.values())) or "none"
        raise ArgumentError(
            f"decoder {model.name!r}: wanted one output of logits, floats of [batch, length, "
            f"vocabulary]; besides states it has {listed}. Say which with ports={{name: 'logits'}} "
            "or export the model with its product with the vocabulary (lm_head)."
        )
    return found[0]


def published_folder(model: str | Path) -> Path:
    """Return the folder with what is published of a model: its file's, or the one of ``onnx/``.

    Models for Transformers.js are in a folder of that name, their configuration above it.
    """
    folder = Path(model).absolute().parent
    is_below = folder.name == "onnx" and not (folder / "config.json").is_file()
    return folder.parent if is_below else folder


def _read_configuration(folder: Path | None) -> dict[str, Any]:
    """Return what the files that exporters write beside a model say of it, the first first."""
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json", "genai_config.json"):
        path = folder / name if folder else None
        if path is None or not path.is_file():
            continue
        try:
            read = json.loads(path.read_text())
            read = read["model"] if name.startswith("genai") else read
            found |= {key: value for key, value in read.items() if value is not None}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path}: not the configuration of a decoder: {error!r}.") from error
    return found


def _context_length(model: Model, named: Mapping[str, str], read: Mapping[str, Any]) -> int | None:
    names = (
        "context_length",
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_target_positions",
    )
    most = [read[name] for name in names if isinstance(read.get(name), int)][:1]
    if "past_length" in named:  # caches that are written in place are as long as their ports
        shapes = [variable.input.shape or () for variable in variables_of(model)]
        most += [s[-2] for s in shapes if len(s) == 4 and isinstance(s[-2], int)]
    if "positions" in named:
        most += _lengths_of_tables(model, named["positions"])
    return min(most, default=None)


def _lengths_of_tables(model: Model, places: str) -> list[int]:
    """Return how long the constants are of which rows are taken at these places."""
    found: list[int] = []
    for node in (model.nodes[i] for i in model.consumers.get(places, ())):
        if node.op_type in _PASSING and node.inputs[0] == places:
            found += _lengths_of_tables(model, node.outputs[0])
        elif node.op_type == "Gather" and node.inputs[1] == places:
            table = model.constants.get(node.inputs[0])
            if table is not None and not node.attributes.get("axis", 0):
                found += table.array.shape[:1]
    return found


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return checked_ids("eos_token_id", values)


def checked_ids(name: str, given: Any) -> list[int]:
    """Return token ids that an argument gives.

    Raises ArgumentTypeError: it is none, or holds what is none.
    """
    ids: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        raise ArgumentTypeError(f"{name}={given!r}: wanted a list of token ids, as [2, 7].")
    return [int(i) for i in ids]


def step_shapes(model: Model, decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Return the input shapes of a decode step of one token, with a KV cache of usual length.

    Caches hold as many tokens as the model takes, at most `_PAST`.
    """
    past = min(decoder.context_length or _PAST, _PAST) - 1
    caches = {variable.name for variable in variables_of(model)}
    ids = next(port for port in model.inputs if port.name == decoder.ids)
    sizes = dict.fromkeys((d for d in ids.shape or () if isinstance(d, str)), 1)
    shapes = {}
    for port in model.inputs:
        last = past if port.name in caches else past + 1 if port.name == decoder.mask else 1
        shape = (d if isinstance(d, int) else sizes.get(d or "", last) for d in port.shape or ())
        shapes[port.name] = tuple(shape)
    return shapes
