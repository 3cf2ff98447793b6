"""Properties: the guide's names, each with a type, a mutability and a check.

`set_property` and the configuration given to `compile_model` both go through a `PropertyTable`,
which refuses what is unknown, read-only or ill-typed, and says what would do.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from devices.errors import PropertyError, ReadOnlyPropertyError, UnknownPropertyError

Config = Mapping[str, Any]


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
        The only values allowed, where there are only some.
    minimum : float or None
        The least number allowed.
    shapes_result : bool
        Whether it changes what compilation makes, and so belongs in a cache key.
    check : callable, optional
        Returns a sentence that says what is wrong with a value, or None.
    """

    name: str
    type: type
    default: Any
    mutable: bool
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    shapes_result: bool = False
    check: Callable[[Any], str | None] | None = None

    def parse(self, value: Any) -> Any:
        """Return `value` as the property's type.

        Raises
        ------
        PropertyError
            If it is none of the values that the property takes.
        """
        parsed = self._convert(value)
        wrong = self.check(parsed) if self.check else None
        if self.choices and parsed not in self.choices:
            wrong = f"it takes {', '.join(map(repr, self.choices))}"
        if self.minimum is not None and parsed < self.minimum:
            wrong = f"it is at least {self.minimum}"
        if wrong:
            raise PropertyError(f"{self.name}={value!r}: {wrong}. {self.doc}", property=self.name)
        return parsed

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
            except (TypeError, ValueError):
                converted = None
            if converted is not None and not (self.type is int and converted != float(value)):
                return converted
        elif self.type is tuple:
            if isinstance(value, str):
                return tuple(part for part in value.replace(",", " ").split() if part)
            if isinstance(value, list | tuple | set | frozenset):
                return tuple(value)
        elif isinstance(value, self.type) and not isinstance(value, bool):
            return value
        elif self.type is dict and isinstance(value, str):
            try:
                parsed = json.loads(value)
            except json.JSONDecodeError:
                parsed = None
            if isinstance(parsed, dict):
                return parsed
        raise PropertyError(
            f"{self.name}={value!r}: wanted {self.type.__name__}, got {type(value).__name__}. "
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

    def __getitem__(self, name: str) -> Property:
        try:
            return self._properties[name]
        except KeyError:
            near = difflib.get_close_matches(str(name), self._properties, 3, 0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else "."
            raise UnknownPropertyError(
                f"no property {name!r}{hint} There are {', '.join(sorted(self._properties))}.",
                property=name,
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __contains__(self, name: object) -> bool:
        return name in self._properties

    def extended(self, *properties: Property) -> PropertyTable:
        """Return a table with `properties` added."""
        return PropertyTable(*self._properties.values(), *properties)

    def defaults(self) -> dict[str, Any]:
        """Return every property's default."""
        return {p.name: p.default for p in self._properties.values()}

    def parse(self, config: Config) -> dict[str, Any]:
        """Check a whole configuration and return it with typed values.

        Raises
        ------
        UnknownPropertyError, ReadOnlyPropertyError, PropertyError
            Naming the first entry that cannot be, and what could.
        """
        parsed = {}
        for name, value in config.items():
            declared = self[name]
            if not declared.mutable:
                mutable = ", ".join(sorted(p.name for p in self._properties.values() if p.mutable))
                raise ReadOnlyPropertyError(
                    f"{name} can be read, not set; these can: {mutable}.", property=name
                )
            parsed[name] = declared.parse(value)
        return parsed

    def key(self, config: Config) -> dict[str, Any]:
        """Return the part of a configuration that changes what compilation makes."""
        return {n: config[n] for n in sorted(config) if n in self and self[n].shapes_result}


def _read_only(name: str, kind: type, default: Any, doc: str) -> Property:
    return Property(name, kind, default, False, doc)


#: What every plugin has, by the plugin guide.
COMMON_PROPERTIES: Final = PropertyTable(
    Property("DEVICE_ID", str, "0", True, "Which of the plugin's devices."),
    Property("PERF_COUNT", bool, False, True, "Whether requests time each executed node."),
    Property("NUM_STREAMS", int, 1, True, "How many requests a device runs at once.", minimum=1),
    Property(
        "INFERENCE_NUM_THREADS", int, 0, True,
        "Threads that one inference may use; 0: the device's share of the node's cores.",
        minimum=0,
    ),
    Property(
        "PERFORMANCE_HINT", str, "", True, "What to optimise for.",
        choices=("", "LATENCY", "THROUGHPUT"),
    ),
    Property(
        "PERFORMANCE_HINT_NUM_REQUESTS", int, 0, True,
        "How many requests the application keeps in flight; 0: not said.", minimum=0,
    ),
    Property(
        "INFERENCE_PRECISION_HINT", str, "", True,
        "Element type to compute in; empty: the model's own.",
        choices=("", "f32", "f16", "bf16"), shapes_result=True,
    ),
    Property(
        "EXECUTION_MODE_HINT", str, "ACCURACY", True, "Whether speed may cost accuracy.",
        choices=("ACCURACY", "PERFORMANCE"), shapes_result=True,
    ),
    Property(
        "DISABLE_TRANSFORMATIONS", bool, False, True,
        "Whether to run the model node by node as it was written.", shapes_result=True,
    ),
    Property(
        "EXCLUSIVE_ASYNC_REQUESTS", bool, False, True,
        "Whether requests of one device run one after another.",
    ),
    Property(
        "MODEL_PRIORITY", str, "DEFAULT", True, "Whose requests go first on a device.",
        choices=("LOW", "MEDIUM", "HIGH", "DEFAULT"),
    ),
    Property(
        "LOG_LEVEL", str, "LOG_WARNING", True, "What the backend says on its own.",
        choices=("LOG_NONE", "LOG_ERROR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG", "LOG_TRACE"),
    ),
    Property("CACHE_DIR", str, "", True, "Folder of compiled models; empty: no cache."),
    Property("ENABLE_MMAP", bool, True, True, "Whether weights are mapped rather than read."),
    _read_only("SUPPORTED_PROPERTIES", tuple, (), "Every property's name."),
    _read_only("CACHING_PROPERTIES", tuple, (), "Properties that change what compilation makes."),
    _read_only("AVAILABLE_DEVICES", tuple, ("0",), "The plugin's device ids."),
    _read_only("FULL_DEVICE_NAME", str, "", "The device's name for people."),
    _read_only("DEVICE_ARCHITECTURE", str, "", "What compiled code depends on."),
    _read_only("DEVICE_TYPE", str, "INTEGRATED", "INTEGRATED or DISCRETE."),
    _read_only("OPTIMIZATION_CAPABILITIES", tuple, ("FP32",), "Element types and abilities."),
    _read_only("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, (1, 1, 1), "Fewest, most, step."),
    _read_only("EXECUTION_DEVICES", tuple, (), "Devices that the compiled model runs on."),
    _read_only("NETWORK_NAME", str, "", "The compiled model's name."),
    _read_only("LOADED_FROM_CACHE", bool, False, "Whether compilation was a cache hit."),
    _read_only("OPTIMAL_NUMBER_OF_INFER_REQUESTS", int, 1, "Requests that keep it busy."),
)  # fmt: skip
