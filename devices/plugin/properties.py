"""Properties: names, types, mutability and checks, with OpenVINO's property names.

A plugin declares a `PropertyTable` of the properties that it supports.
`hetero.devices.plugin.configuration` stores their values.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from hetero.devices.deprecation import deprecated_alias
from hetero.devices.errors import PropertyError, UnknownPropertyError
from hetero.devices.file_reader import parse_json
from hetero.devices.model.element_type import Type
from hetero.devices.model.ov_any import plain

Config = Mapping[str, Any]

_TYPE_NAMES: Final = {
    bool: "YES or NO (bool)",
    int: "an integer (int)",
    float: "a finite number (float)",
    str: "text (str)",
    tuple: "a list",
    dict: "a mapping, or a JSON object",
}


@dataclass(frozen=True, slots=True)
class Property:
    """One property of a plugin or a compiled model.

    Attributes
    ----------
    name : str
        The property's name.
    type : type
        ``str``, ``int``, ``float``, ``bool``, ``tuple`` or ``dict``. Strings are converted; a dict
        is read from JSON.
    default : object
        The value of an unset property.
    mutable : bool
        Whether `set_property` and `compile_model` accept the property.
    doc : str
        One sentence with the meaning and the unit.
    choices : tuple
        Allowed values, or allowed elements of a tuple; empty allows every value. The case of
        strings is ignored.
    minimum, maximum : float or None
        Range of a number, or of each value of a dict.
    pattern : str
        Regular expression that a string must match completely.
    shapes_result : bool
        Whether the property changes the compiled model, and therefore belongs in cache keys.
    check : callable, optional
        Returns a sentence about the problem of a value, or None. Only the device's own process
        calls it; prefer the fields above, which every process applies.
    sole_device_default : object
        Default if the model is compiled for this device only, so that no other device can run the
        nodes that it refuses. None means `default`.
    auto_values : tuple
        Values that select `default`.
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
    sole_device_default: Any = None
    auto_values: tuple[int | str, ...] = ()

    def parse(self, value: Any) -> Any:
        """Return `value` as the property's type.

        Raises
        ------
        PropertyError
            The value is invalid.
        """
        value = plain(value)
        if isinstance(value, int | str) and value in self.auto_values:
            return self.default
        parsed = self._convert(value)
        if problem := self._problem(parsed):
            raise PropertyError(f"{self.name}={value!r}: {problem}. {self.doc}", property=self.name)
        return parsed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without `check`, which is code that only the device's process can call."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Property, tuple((values | {"check": None}).values())

    def _problem(self, parsed: Any) -> str | None:
        """Describe the problem of a value of the right type, or return None."""
        parts: Iterable[Any] = [parsed]
        if self.type in (tuple, dict):
            parts = parsed.values() if self.type is dict else parsed
        if self.choices and any(part not in self.choices for part in parts):
            return f"expected one of {', '.join(map(repr, self.choices))}"
        if self.pattern and not re.fullmatch(self.pattern, parsed):
            return f"expected text that matches {self.pattern}"
        if self.minimum is not None and not all(
            isinstance(part, int | float)
            and self.minimum <= part <= self.maximum
            and part < math.inf
            for part in parts
        ):
            limit = "" if self.maximum == math.inf else f" and <= {self.maximum}"
            noun = "numbers" if self.type is dict else "a number"
            return f"expected {noun} >= {self.minimum}{limit}"
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
                is_exact = self.type is float or isinstance(value, str) or converted == value
                is_valid = math.isfinite(converted) and is_exact
            except (TypeError, ValueError, OverflowError):
                is_valid = False
            if is_valid:
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
                parsed = parse_json(value)
            except (TypeError, ValueError):
                parsed = None
            if isinstance(parsed, dict):
                return parsed
        elif isinstance(value, bool) and "YES" in self.choices:
            return "YES" if value else "NO"
        elif isinstance(value, str | os.PathLike):
            value = value.type_name if isinstance(value, Type) else os.fspath(value)
            matches = (c for c in self.choices if c.casefold() == value.casefold())
            return next(matches, value)
        raise PropertyError(
            f"{self.name}={value!r}: expected {_TYPE_NAMES[self.type]}, got "
            f"{type(value).__name__}. {self.doc}",
            property=self.name,
        )


#: Metric or key of OpenVINO's first API -> the property, option or method that replaces it.
_FIRST_API: Final = {
    "SUPPORTED_METRICS": "SUPPORTED_PROPERTIES",
    "SUPPORTED_CONFIG_KEYS": "SUPPORTED_PROPERTIES",
    "IMPORT_EXPORT_SUPPORT": "OPTIMIZATION_CAPABILITIES, which contains EXPORT_IMPORT,",
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "GPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING of device OV",
    "ENFORCE_BF16": "INFERENCE_PRECISION_HINT of device OV",
    "TARGET_FALLBACK": "MULTI_DEVICE_PRIORITIES",
    "DYN_BATCH_ENABLED": "AUTO_BATCH_SIZE",
    "DYN_BATCH_LIMIT": "AUTO_BATCH_SIZE",
    "HETERO_DUMP_GRAPH_DOT": "`hetero query --html`",
    "DUMP_EXEC_GRAPH_AS_DOT": "`get_runtime_model` of the compiled model",
}


class PropertyTable(Mapping[str, Property]):
    """Mapping of names to properties.

    Parameters
    ----------
    *properties : Property
        A later property replaces an earlier one of the same name, for example with another default.
    """

    def __init__(self, *properties: Property) -> None:
        self._properties: Final = MappingProxyType({p.name: p for p in properties})
        #: Names of the mutable properties.
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
        """Return a table without the named properties."""
        return PropertyTable(*(p for p in self._properties.values() if p.name not in names))

    @property
    def mutability(self) -> dict[str, str]:
        """Property name -> ``RW``, or ``RO`` for a read-only property."""
        return {p.name: "RW" if p.mutable else "RO" for p in self._properties.values()}

    @property
    def caching_properties(self) -> tuple[str, ...]:
        """Names of the properties that change the compiled model."""
        return tuple(p.name for p in self._properties.values() if p.shapes_result)

    shaping = deprecated_alias("shaping", "caching_properties")

    def key(self, config: Config) -> dict[str, Any]:
        """Return the entries of a configuration that change the compiled model."""
        return {n: config[n] for n in sorted(config) if n in self and self[n].shapes_result}


def unknown_property(name: object, owner: str, names: Iterable[str]) -> UnknownPropertyError:
    """Return an error that suggests similar valid names, or lists all of them."""
    if str(name).upper() in _FIRST_API:
        return UnknownPropertyError(
            f"no property {name!r} on {owner}: it belongs to OpenVINO's first API. Use "
            f"{_FIRST_API[str(name).upper()]} instead.",
            property=name,
        )
    matches = difflib.get_close_matches(str(name).upper(), names := sorted(names), 3, 0.6)
    if str(name).upper() in matches:
        matches = [str(name).upper()]
    hint = f"Did you mean {' or '.join(matches)}?" if matches else f"Expected {', '.join(names)}."
    return UnknownPropertyError(f"no property {name!r} on {owner}. {hint}", property=name)


#: Properties of every plugin, which the base classes and Core implement.
COMMON_PROPERTIES: Final = PropertyTable(
    Property("DEVICE_ID", str, "0", True, "Id of one of the plugin's devices."),
    Property("PERF_COUNT", bool, False, True, "Whether requests time each executed node."),
    # Each stream is a thread; 1024 is far above the number of cores of any machine.
    Property(
        "NUM_STREAMS",
        int,
        1,
        True,
        "Number of requests that a device runs at once.",
        minimum=1,
        maximum=1024,
        auto_values=(-1, -2, "AUTO", "NUMA"),
    ),
    Property(
        "EXCLUSIVE_ASYNC_REQUESTS",
        bool,
        False,
        True,
        "Whether requests of all models with this option run one after another on a device.",
    ),
    Property("CACHE_DIR", str, "", True, "Folder of the model cache; empty: no cache."),
    Property(
        "ENABLE_MMAP",
        bool,
        True,
        True,
        "Whether weights of imported and cached models are memory-mapped.",
    ),
    Property("SUPPORTED_PROPERTIES", tuple, (), False, "Names of all properties."),
    Property("CACHING_PROPERTIES", tuple, (), False, "Properties that change the compiled model."),
    Property("AVAILABLE_DEVICES", tuple, ("0",), False, "The plugin's device ids."),
    Property("FULL_DEVICE_NAME", str, "", False, "The device's descriptive name."),
    Property("DEVICE_ARCHITECTURE", str, "", False, "The device's fingerprint in cache keys."),
    Property("DEVICE_TYPE", str, "INTEGRATED", False, "INTEGRATED or DISCRETE."),
    Property("OPTIMIZATION_CAPABILITIES", tuple, ("FP32",), False, "Element types and abilities."),
    Property("RANGE_FOR_STREAMS", tuple, (1, 1024), False, "Minimum and maximum of NUM_STREAMS."),
    Property(
        "RANGE_FOR_ASYNC_INFER_REQUESTS",
        tuple,
        (1, 1, 1),
        False,
        "Minimum, maximum and step of the number of requests.",
    ),
    Property("EXECUTION_DEVICES", tuple, (), False, "Devices that the compiled model runs on."),
    Property("NETWORK_NAME", str, "", False, "The compiled model's name."),
    Property("LOADED_FROM_CACHE", bool, False, False, "Whether compilation was a cache hit."),
    Property(
        "RUNTIME_REQUIREMENTS",
        str,
        "",
        False,
        "Devices, versions and fingerprints that an export of the compiled model needs.",
    ),
    Property(
        "COMPATIBILITY_CHECK",
        str,
        "NOT_APPLICABLE",
        False,
        "Whether a Core can import an export; the argument is its RUNTIME_REQUIREMENTS.",
    ),
    Property(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        int,
        1,
        False,
        "Number of requests that keeps the device busy.",
    ),
)

#: The precision property of devices that compute in the model's types.
FULL_PRECISION: Final = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "dynamic",
    True,
    "Lowest precision of float32 nodes; this device never computes them in less than float32.",
    choices=("dynamic", "f32"),
)

#: Standard properties that not every plugin supports.
OPTIONAL_PROPERTIES: Final = PropertyTable(
    Property(
        "INFERENCE_NUM_THREADS",
        int,
        0,
        True,
        "Number of threads of one inference; 0: the device's share of the node's cores.",
        minimum=0,
    ),
    Property(
        "DISABLE_TRANSFORMATIONS",
        bool,
        False,
        True,
        "Whether to run the original nodes without graph transformations.",
        shapes_result=True,
    ),
)
