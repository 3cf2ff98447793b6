"""Properties: the guide's names, each with a type, a mutability and a check.

A plugin declares a table of those that it obeys; `hetero.devices.plugin.configuration` holds their
values.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from hetero.devices.errors import PropertyError, UnknownPropertyError

Config = Mapping[str, Any]

_TYPE_NAMES: Final = {
    bool: "YES or NO (bool)",
    int: "a whole number (int)",
    float: "a finite number (float)",
    str: "text (str)",
    tuple: "a list",
    dict: "a mapping, or one in JSON",
}


@dataclass(frozen=True, slots=True)
class Property:
    """One property of a plugin or a compiled model.

    Attributes
    ----------
    name : str
        The guide's name.
    type : type
        ``str``, ``int``, ``float``, ``bool``, ``tuple`` or ``dict``; strings are converted, a dict
        from JSON.
    default : object
        Its value until it is set.
    mutable : bool
        Whether `set_property` and `compile_model` take it.
    doc : str
        One sentence: meaning and unit.
    choices : tuple
        The only values allowed, where there are only some; of a tuple, its elements. Strings are
        taken in any case.
    minimum, maximum : float or None
        The least and the greatest number allowed; of a dict, for each value.
    pattern : str
        A regular expression that a string fully matches.
    shapes_result : bool
        Whether it changes what compilation makes, and so belongs in a cache key.
    check : callable, optional
        Returns a sentence that says what is wrong with a value, or None. It is called where the
        device is; prefer the fields above, which are known to every process.
    alone : object
        Its default where a model is for one device: no other could take what that refuses. None:
        `default`.
    automatic : tuple
        Values that leave it to the device: they are `default`.
    """

    name: str
    type: type
    default: Any
    mutable: bool
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    shapes_result: bool = False
    pattern: str = ""
    check: Callable[[Any], str | None] | None = None
    maximum: float = math.inf
    alone: Any = None
    automatic: tuple[int | str, ...] = ()

    def parse(self, value: Any) -> Any:
        """Return `value` as the property's type.

        Raises
        ------
        PropertyError
            If the property does not take this value.
        """
        if isinstance(value, int | str) and value in self.automatic:
            return self.default
        parsed = self._convert(value)
        if wrong := self._wrong(parsed):
            raise PropertyError(f"{self.name}={value!r}: {wrong}. {self.doc}", property=self.name)
        return parsed

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without `check`, which is code: the device's own process applies it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Property, tuple((values | {"check": None}).values())

    def _wrong(self, parsed: Any) -> str | None:
        """Return what is wrong with a value of the right type, or None."""
        parts: Iterable[Any] = [parsed]
        if self.type in (tuple, dict):
            parts = parsed.values() if self.type is dict else parsed
        if self.choices and any(part not in self.choices for part in parts):
            return f"valid values are {', '.join(map(repr, self.choices))}"
        if self.pattern and not re.fullmatch(self.pattern, parsed):
            return f"it does not match {self.pattern}"
        if self.minimum is not None and not all(
            isinstance(part, int | float)
            and self.minimum <= part <= self.maximum
            and part < math.inf
            for part in parts
        ):
            most = "" if self.maximum == math.inf else f" and <= {self.maximum}"
            what = "numbers" if self.type is dict else "a number"
            return f"wanted {what} >= {self.minimum}{most}"
        return self.check(parsed) if self.check else None

    def _convert(self, value: Any) -> Any:
        if self.type is bool:
            words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
            if isinstance(value, bool):
                return value
            if str(value).lower() in words:
                return words[str(value).lower()]
        elif self.type in (int, float) and not isinstance(value, bool):
            try:
                converted = self.type(value)
                given = self.type is float or isinstance(value, str)
                exact = math.isfinite(converted) and (given or converted == value)
            except (TypeError, ValueError, OverflowError):
                exact = False
            if exact:
                return converted
        elif self.type is tuple:
            if isinstance(value, str):
                return tuple(part for part in value.replace(",", " ").split() if part)
            if isinstance(value, list | tuple | set | frozenset):
                return tuple(value)
        elif self.type is dict:
            if isinstance(value, Mapping):
                return deepcopy(dict(value))
            try:
                parsed = json.loads(value)
            except (TypeError, ValueError, RecursionError):
                parsed = None
            if isinstance(parsed, dict):
                return parsed
        elif isinstance(value, bool) and "YES" in self.choices:
            return "YES" if value else "NO"
        elif isinstance(value, str | os.PathLike):
            value = os.fspath(value)
            same = (c for c in self.choices if c.casefold() == value.casefold())
            return next(same, value)
        raise PropertyError(
            f"{self.name}={value!r}: wanted {_TYPE_NAMES[self.type]}, got {type(value).__name__}. "
            f"{self.doc}",
            property=self.name,
        )


class PropertyTable(Mapping[str, Property]):
    """Properties by name.

    Parameters
    ----------
    *properties : Property
        Later ones replace earlier ones of the same name, so that a plugin can narrow a default.
    """

    def __init__(self, *properties: Property) -> None:
        self._properties: Final = MappingProxyType({p.name: p for p in properties})
        #: Names of the properties that can be set.
        self.mutable: Final = tuple(p.name for p in self._properties.values() if p.mutable)

    def __getitem__(self, name: str) -> Property:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __reduce__(self) -> tuple[Any, ...]:
        return PropertyTable, tuple(self._properties.values())

    def extended(self, *properties: Property) -> PropertyTable:
        """Return a table with `properties` added."""
        return PropertyTable(*self._properties.values(), *properties)

    def without(self, *names: str) -> PropertyTable:
        """Return a table that lacks some properties."""
        return PropertyTable(*(p for p in self._properties.values() if p.name not in names))

    @property
    def mutability(self) -> dict[str, str]:
        """Each property's name -> RW, or RO where it can be read only."""
        return {p.name: "RW" if p.mutable else "RO" for p in self._properties.values()}

    @property
    def shaping(self) -> tuple[str, ...]:
        """Names of the properties that change what compilation makes."""
        return tuple(p.name for p in self._properties.values() if p.shapes_result)

    def key(self, config: Config) -> dict[str, Any]:
        """Return the part of a configuration that changes what compilation makes."""
        return {n: config[n] for n in sorted(config) if n in self and self[n].shapes_result}


def unknown_property(name: object, owner: str, names: Iterable[str]) -> UnknownPropertyError:
    """Return an error that suggests which of `names` was meant, or lists them."""
    near = difflib.get_close_matches(str(name).upper(), names := sorted(names), 3, 0.6)
    if str(name).upper() in near:
        near = [str(name).upper()]
    hint = f"; did you mean {' or '.join(near)}?" if near else f". There are {', '.join(names)}."
    return UnknownPropertyError(f"no property {name!r} on {owner}{hint}", property=name)


#: What every plugin has: the base classes and Core obey these.
COMMON_PROPERTIES: Final = PropertyTable(
    Property("DEVICE_ID", str, "0", True, "Which of the plugin's devices."),
    Property("PERF_COUNT", bool, False, True, "Whether requests time each executed node."),
    # Each is a thread; no machine has needed more.
    Property(
        "NUM_STREAMS",
        int,
        1,
        True,
        "How many requests a device runs at once.",
        minimum=1,
        maximum=1024,
        automatic=(-1, -2, "AUTO", "NUMA"),
    ),
    Property(
        "EXCLUSIVE_ASYNC_REQUESTS",
        bool,
        False,
        True,
        "Whether requests of all models with this option run one after another on a device.",
    ),
    Property("CACHE_DIR", str, "", True, "Where Core keeps compiled models; empty: nowhere."),
    Property(
        "ENABLE_MMAP",
        bool,
        True,
        True,
        "Whether weights of imported and cached models are mapped rather than read.",
    ),
    Property("SUPPORTED_PROPERTIES", tuple, (), False, "Every property's name."),
    Property(
        "CACHING_PROPERTIES", tuple, (), False, "Properties that change what compilation makes."
    ),
    Property("AVAILABLE_DEVICES", tuple, ("0",), False, "The plugin's device ids."),
    Property("FULL_DEVICE_NAME", str, "", False, "The device's name for people."),
    Property("DEVICE_ARCHITECTURE", str, "", False, "What compiled code depends on."),
    Property("DEVICE_TYPE", str, "INTEGRATED", False, "INTEGRATED or DISCRETE."),
    Property("OPTIMIZATION_CAPABILITIES", tuple, ("FP32",), False, "Element types and abilities."),
    Property("RANGE_FOR_STREAMS", tuple, (1, 1024), False, "Fewest and most."),
    Property("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, (1, 1, 1), False, "Fewest, most, step."),
    Property("EXECUTION_DEVICES", tuple, (), False, "Devices that the compiled model runs on."),
    Property("NETWORK_NAME", str, "", False, "The compiled model's name."),
    Property("LOADED_FROM_CACHE", bool, False, False, "Whether compilation was a cache hit."),
    Property("OPTIMAL_NUMBER_OF_INFER_REQUESTS", int, 1, False, "Requests that keep it busy."),
)

#: The guide's names that a plugin adds to its table where it obeys them.
OPTIONAL_PROPERTIES: Final = PropertyTable(
    Property(
        "INFERENCE_NUM_THREADS",
        int,
        0,
        True,
        "Threads that one inference may use; 0: the device's share of the node's cores.",
        minimum=0,
    ),
    Property(
        "DISABLE_TRANSFORMATIONS",
        bool,
        False,
        True,
        "Whether to run the model node by node as it was written.",
        shapes_result=True,
    ),
)
