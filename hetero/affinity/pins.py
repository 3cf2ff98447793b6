"""Pins as text: JSON and YAML files, and ``PATTERN=DEVICE`` on a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hetero.affinity.affinity import NO_PINS, Affinity, resolve_pins
from hetero.affinity.metadata import metadata_pins
from hetero.devices.errors import AffinityError, ArgumentTypeError
from hetero.devices.model.model import Model
from hetero.scheduler.formats.regular_file import read_regular

#: The largest file that is read.
_MOST_NBYTES: Final = 2**25
#: {pattern: device}, an affinity file, or ``PATTERN=DEVICE`` strings.
AffinitySource = Mapping[str, str] | str | Path | Sequence[str]


def load_affinity(path: str | Path) -> dict[str, str]:
    """Read pins from a file: ``{pattern: device}``, by itself or under the key ``affinity``.

    It is JSON if it ends in ``.json``, YAML otherwise; an AffinityError says the line if known.
    """
    path = Path(path)
    try:
        text = read_regular(path, _MOST_NBYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise AffinityError(
            f"affinity file {path}: cannot be read: {error}. It is a JSON or YAML file with "
            "{pattern: device}.",
            path=str(path),
        ) from error
    entries = _json_entries(text, path) if path.suffix == ".json" else _yaml_entries(text, path)
    pins: dict[str, str] = {}
    for pattern, device, line in entries:
        if pattern in pins:
            raise _error(path, line, f"pattern {pattern!r} is given twice; keep one")
        if not isinstance(device, str) or not device:
            raise _error(path, line, f"pattern {pattern!r}: expected a device name, got {device!r}")
        pins[pattern] = device
    return pins


def parse_pins(texts: Iterable[str]) -> dict[str, str]:
    """Read pins as a command line has them: ``PATTERN=DEVICE``, or the name of an affinity file."""
    texts = list(texts) if isinstance(texts, Iterable) else [texts]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ArgumentTypeError(
            f"affinity: {wrong[0]!r} is not a text; give {{pattern: device}}, the path of an "
            "affinity file, or a list of texts PATTERN=DEVICE."
        )
    pins: dict[str, str] = {}
    for text in texts:
        pattern, equals, device = (part.strip() for part in text.rpartition("="))
        if equals and pattern and device:
            pins.pop(pattern, None)  # the later one wins, so it also comes later
            pins[pattern] = device
        elif not equals and Path(text).is_file():
            pins |= load_affinity(text)
        else:
            missing = "" if "=" in text else f"there is no file {text}; "
            raise AffinityError(
                f"affinity {text!r}: {missing}expected PATTERN=DEVICE, such as op:Concat=CPU or "
                "'conv*=ORT', or an existing affinity file."
            )
    return pins


def pins_of(model: Model, devices: Sequence[str], source: AffinitySource | None) -> Affinity:
    """Collect pins from what a user gives in any of its forms; they win over the model's metadata.

    Metadata is not read for a single device: a model annotated for several still runs on one.
    """
    pins = metadata_pins(model, devices) if len(devices) > 1 else NO_PINS
    if isinstance(source, str) and "=" in source and not Path(source).exists():
        source = [source]
    if isinstance(source, str | Path):
        return resolve_pins(model, load_affinity(source), devices, source=f"{source}").over(pins)
    given = source if isinstance(source, Mapping) else parse_pins(source or ())
    return resolve_pins(model, given, devices).over(pins)


def _json_entries(text: str, path: Path) -> list[tuple[str, Any, int | None]]:
    class Pairs(list[tuple[str, Any]]):
        """A JSON object with repeated keys kept."""

    try:
        content = json.loads(text, object_pairs_hook=Pairs)
    except json.JSONDecodeError as error:
        raise _error(path, error.lineno, f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _error(path, None, f"not read: {error}") from error
    if isinstance(content, Pairs) and len(content) == 1:
        key, inner = content[0]
        if key == "affinity" and isinstance(inner, Pairs):
            content = inner
    if not isinstance(content, Pairs):
        raise _error(path, 1, f"expected {{pattern: device}}, got {type(content).__name__}")
    lines = text.splitlines()

    def line_of(key: str) -> int | None:
        quoted = json.dumps(key)
        return next((i for i, line in enumerate(lines, 1) if quoted in line), None)

    return [(key, value, line_of(key)) for key, value in content]


def _yaml_entries(text: str, path: Path) -> list[tuple[str, Any, int | None]]:
    import yaml  # few give such a file: what is imported here is not needed at every start

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise _error(path, line, f"not YAML: {getattr(error, 'problem', error)}") from error
    except (ValueError, RecursionError) as error:
        raise _error(path, None, f"not read: {error}") from error
    if isinstance(root, yaml.MappingNode) and len(root.value) == 1:
        key, inner = root.value[0]
        if key.value == "affinity" and isinstance(inner, yaml.MappingNode):
            root = inner
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise _error(path, line, f"expected {{pattern: device}}, got {root.tag}")
    entries: list[tuple[str, Any, int | None]] = []
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _error(path, line, f"expected a pattern, got {key.tag}")
        if value.tag != "tag:yaml.org,2002:str":
            kind = value.tag.rpartition(":")[2]
            raise _error(path, line, f"pattern {key.value!r}: expected a device name, got {kind}")
        entries.append((key.value, value.value, line))
    return entries


def _error(path: Path, line: int | None, what: str) -> AffinityError:
    at = f"{path}:{line}" if line else str(path)
    return AffinityError(f"affinity file {at}: {what}.", path=str(path), line=line)
