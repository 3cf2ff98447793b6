"""Pins from users: mappings, JSON and YAML files, and ``PATTERN=DEVICE`` strings."""

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

#: The size limit of an affinity file.
_MAX_FILE_NBYTES: Final = 2**25
#: {pattern: device}, an affinity file, or ``PATTERN=DEVICE`` strings.
AffinitySource = Mapping[str, str] | str | Path | Sequence[str]


def load_affinity(path: str | Path) -> dict[str, str]:
    """Read pins from a file: ``{pattern: device}``, by itself or under the key ``affinity``.

    The file is JSON if its name ends in ``.json``, YAML otherwise.

    Raises AffinityError: with the path, and with the line if the parser reports one.
    """
    path = Path(path)
    try:
        text = read_regular(path, _MAX_FILE_NBYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise AffinityError(
            f"affinity file {path}: cannot be read: {error}. Expected a JSON or YAML file with "
            "{pattern: device}.",
            path=str(path),
        ) from error
    entries = _json_entries(text, path) if path.suffix == ".json" else _yaml_entries(text, path)
    pins: dict[str, str] = {}
    for pattern, device, line in entries:
        if pattern in pins:
            raise _error(path, line, f"pattern {pattern!r} occurs twice; keep one")
        if not isinstance(device, str) or not device:
            raise _error(path, line, f"pattern {pattern!r}: expected a device name, got {device!r}")
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


def _json_entries(text: str, path: Path) -> list[tuple[str, Any, int | None]]:
    class Pairs(list[tuple[str, Any]]):
        """A JSON object that keeps repeated keys."""

    try:
        content = json.loads(text, object_pairs_hook=Pairs)
    except json.JSONDecodeError as error:
        raise _error(path, error.lineno, f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise _error(path, None, f"cannot be read: {error}") from error
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
    import yaml  # imported here because few callers use YAML, and the import slows every start

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise _error(path, line, f"not YAML: {getattr(error, 'problem', error)}") from error
    except (ValueError, RecursionError) as error:
        raise _error(path, None, f"cannot be read: {error}") from error
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


def _error(path: Path, line: int | None, problem: str) -> AffinityError:
    place = f"{path}:{line}" if line else str(path)
    return AffinityError(f"affinity file {place}: {problem}.", path=str(path), line=line)
