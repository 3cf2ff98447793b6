"""Writes ``docs/reference.md``, all that is public on one page: ``python -m tests.reference``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import hetero
import hetero.devices.testing
from hetero import devices
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.gpu.plugin import GPUPlugin
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.openvino.properties import OWN_PROPERTIES
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.ort.provider_plugin import ProviderPlugin
from hetero.devices.plugin.properties import COMMON_PROPERTIES, Property
from hetero.properties.table import HETERO_PROPERTIES

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
PACKAGES = ("devices", "hetero", "scheduler")
#: What users import.
MODULES = (hetero, hetero.preprocess, hetero.properties, devices, hetero.devices.testing)
_COMMON = tuple(COMMON_PROPERTIES.values())
PROPERTIES: dict[str, Iterable[Property]] = {
    "HETERO and its compiled models": HETERO_PROPERTIES.values(),
    "every device": COMMON_PROPERTIES.values(),
    **{
        f"device {name}": [p for p in table.values() if p not in _COMMON]
        for name, table in (
            ("CPU", CPUPlugin.properties),
            ("GPU", GPUPlugin.properties),
            ("ORT", ORTPlugin.properties),
            ("ORT_...", ProviderPlugin.properties),
            ("OV", OWN_PROPERTIES),
            ("NULL", NullPlugin.properties),
        )
    },
}


def sentence(thing: Any) -> str:
    """Return what a thing's documentation begins with; empty if it has none of its own."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def signature(name: str, thing: Any) -> str:
    """Return how a thing is called, without the types."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return name
    shown = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("self", "cls")]
    return name + re.sub(r"<([^ >:]+)[^>]*>", r"\1", str(inspect.Signature(shown)))


def members(kind: type) -> dict[str, Any]:
    """Return a class's public methods and properties, those of our own bases included."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in PACKAGES:
            for name, member in vars(base).items():
                if isinstance(member, staticmethod | classmethod):
                    member = member.__func__
                known = inspect.isfunction(member) or isinstance(member, property)
                if known and not name.startswith("_"):
                    found[name] = member
    return {name: getattr(kind, name, member) for name, member in sorted(found.items())}


def public(module: ModuleType) -> dict[str, Any]:
    """Return a module's public names that are no modules, errors and versions apart."""
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    return {
        name: thing
        for name, thing in found.items()
        if not isinstance(thing, ModuleType)
        and not name.startswith("_")
        and not (isinstance(thing, type) and issubclass(thing, BaseException))
    }


def page() -> str:
    """Return the whole page."""
    return "\n".join([*_head(), *_names(), *_errors(), *_properties()]) + "\n"


def _head() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "All that is public. `help(name)` says more of each; this page is made by"
    yield "`python -m tests.reference`, of what the code says."


def _names() -> Iterator[str]:
    shown: set[int] = set()
    for module in MODULES:
        yield from ("", f"## `{module.__name__}`", "", sentence(module))
        for name, thing in public(module).items():
            if (own := getattr(thing, "__name__", name)) != name and own in module.__all__:
                yield from ("", f"`{name}` is another name of `{own}`.")
                continue
            if id(thing) in shown:
                continue
            shown.add(id(thing))
            yield from _name(name, thing)


def _name(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        told = sentence(thing) if inspect.isfunction(thing) else "A name for a type or a table."
        yield from ("", f"### `{signature(name, thing) if callable(thing) else name}`", "", told)
        return
    if issubclass(thing, Enum):
        values = ", ".join(f"`{value.name}`" for value in thing)
        yield from ("", f"### `{name}`", "", sentence(thing), "", f"Values: {values}.")
        return
    yield from ("", f"### `{signature(name, thing)}`", "", sentence(thing))
    rows = [
        f"| `{signature(key, member)}` | {sentence(member)} |"
        for key, member in members(thing).items()
    ]
    if rows:
        yield from ("", "| member | what it is |", "| --- | --- |", *rows)


def _errors() -> Iterator[str]:
    yield from (
        "",
        "## Errors",
        "",
        "In `hetero`, `hetero.errors` and `hetero.devices.errors`.",
        "",
    )
    yield from ("| error | is also | what it says |", "| --- | --- | --- |")
    for name in hetero.errors.__all__:
        kind = getattr(hetero, name)
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        yield f"| `{name}` | {bases} | {sentence(kind)} |"


def _properties() -> Iterator[str]:
    yield from ("", "## Properties", "")
    yield "`OV` has those of OpenVINO's devices as well:"
    yield '`core.get_property("OV", "SUPPORTED_PROPERTIES")` names them.'
    for owner, properties in PROPERTIES.items():
        yield from ("", f"### Properties of {owner}", "")
        yield from ("| property | type | default | can be set | what it is |", "| --- " * 5 + "|")
        for each in sorted(properties, key=lambda p: p.name):
            default = "" if each.default in ("", (), {}) else f"`{each.default}`"
            told = f"{each.doc} {_values(each)}".strip().replace("|", "\\|")
            can = "yes" if each.mutable else "no"
            yield f"| `{each.name}` | {each.type.__name__} | {default} | {can} | {told} |"


def _values(each: Property) -> str:
    return f"One of {', '.join(f'`{c}`' for c in each.choices)}." if each.choices else ""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
