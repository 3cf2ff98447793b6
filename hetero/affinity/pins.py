"""Pins from users: mappings, JSON and YAML files, and ``PATTERN=DEVICE`` strings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hetero.affinity.affinity import NO_PINS, Affinity, resolve_pins
from hetero.affinity.metadata import metadata_pins
from hetero.devices.errors import AffinityError, ArgumentTypeError
from hetero.devices.file_reader import FileReader
from hetero.devices.model.model import Model

_READER: Final = FileReader(
    "affinity file", AffinityError, "Write {pattern: device}, as JSON or YAML.", max_nbytes=2**25
)
#: {pattern: device}, an affinity file, or ``PATTERN=DEVICE`` strings.
AffinitySource = Mapping[str, str] | str | Path | Sequence[str]


def load_affinity(path: str | Path) -> dict[str, str]:
    """Read pins from a file: ``{pattern: device}``, by itself or under the key ``affinity``.

    The file is JSON if its name ends in ``.json``, YAML otherwise.

    Raises AffinityError: with the path, and with the line if the parser reports one.
    """
    path = Path(path)
    entries = _json_entries(path) if path.suffix == ".json" else _yaml_entries(path)
    pins: dict[str, str] = {}
    for pattern, device, line in entries:
        problem = ""
        if pattern in pins:
            problem = f"pattern {pattern!r} occurs twice; keep one"
        elif not isinstance(device, str) or not device:
            problem = f"pattern {pattern!r}: expected a device name, got {device!r}"
        if problem:
            raise _READER.problem(path, problem, line or _json_line(path, pattern))
        pins[pattern] = device
    return pins


def parse_pins(texts: Iterable[str]) -> dict[str, str]:
    """Parse command-line pins: each is ``PATTERN=DEVICE`` or the path of an affinity file."""
    texts = list(texts) if isinstance(texts, Iterable) else [texts]
    if invalid := [text for text in texts if not isinstance(text, str)]:
        raise ArgumentTypeError(
            "affinity: expected {pattern: device}, the path of an affinity file, or a list of "
            f"strings PATTERN=DEVICE; got {invalid[0]!r}."
        )
    pins: dict[str, str] = {}
    for text in texts:
        pattern, equals, device = (part.strip() for part in text.rpartition("="))
        if equals and pattern and device:
            pins.pop(pattern, None)  # the later pin wins, so it also moves to the end
            pins[pattern] = device
        elif not equals and Path(text).is_file():
            pins |= load_affinity(text)
        else:
            hint = "" if "=" in text else f"no such file {text}; "
            raise AffinityError(
                f"affinity {text!r}: {hint}expected PATTERN=DEVICE, such as op:Concat=CPU or "
                "'conv*=ORT', or an existing affinity file."
            )
    return pins


def collect_pins(model: Model, devices: Sequence[str], source: AffinitySource | None) -> Affinity:
    """Collect the pins of a user and of the model's metadata; the user's take precedence.

    A single device ignores metadata, so a model annotated for several devices still runs on one.
    """
    metadata = metadata_pins(model, devices) if len(devices) > 1 else NO_PINS
    if isinstance(source, str) and "=" in source and not Path(source).exists():
        source = [source]
    if isinstance(source, str | Path):
        pins = resolve_pins(model, load_affinity(source), devices, source=str(source))
    else:
        patterns = source if isinstance(source, Mapping) else parse_pins(source or ())
        pins = resolve_pins(model, patterns, devices)
    return pins.with_fallback(metadata)


def _json_entries(path: Path) -> list[tuple[str, Any, int | None]]:
    class Pairs(list[tuple[str, Any]]):
        """A JSON object that keeps repeated keys."""

    content = _READER.read_json(path, Pairs)
    if isinstance(content, Pairs) and len(content) == 1:
        key, inner = content[0]
        if key == "affinity" and isinstance(inner, Pairs):
            content = inner
    if not isinstance(content, Pairs):
        problem = f"expected {{pattern: device}}, got {type(content).__name__}"
        raise _READER.problem(path, problem, 1)
    return [(key, value, None) for key, value in content]


def _json_line(path: Path, key: str) -> int | None:
    """Return the line of a key in a JSON file; its last one if it occurs twice."""
    before, quoted, _ = _READER.read_text(path).rpartition(json.dumps(key))
    return before.count("\n") + 1 if quoted else None


def _yaml_entries(path: Path) -> list[tuple[str, Any, int | None]]:
    root = _READER.read_yaml_nodes(path)
    if root is None:
        return []
    if root.id == "mapping" and len(root.value) == 1:
        key, inner = root.value[0]
        if key.value == "affinity" and inner.id == "mapping":
            root = inner
    if root.id != "mapping":
        problem = f"expected {{pattern: device}}, got {root.tag}"
        raise _READER.problem(path, problem, root.start_mark.line + 1)
    entries: list[tuple[str, Any, int | None]] = []
    for key, value in root.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise _READER.problem(path, f"expected a pattern, got {key.tag}", line)
        if value.tag != "tag:yaml.org,2002:str":
            problem = f"pattern {key.value!r}: expected a device name, got {_yaml_type(value)}"
            raise _READER.problem(path, problem, line)
        entries.append((key.value, value.value, line))
    return entries


def _yaml_type(node: Any) -> str:
    """Return the type of a YAML node, such as ``int``."""
    return str(node.tag).rpartition(":")[2]
