"""The property REPLICAS, and the three properties that it replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hetero.devices.deprecation import warn_renamed
from hetero.devices.errors import PropertyError
from hetero.devices.plugin.properties import Config, Property

NAME: Final = "REPLICAS"
AUTO: Final = "auto"
PLAN: Final = "plan"
_DOC: Final = (
    "Devices that run each subgraph and share its requests: a number N, so that each subgraph runs "
    "on N consecutive devices of the list; a range MIN..MAX, so that the number follows the load; "
    "auto: the number follows the load, from one to all devices of the same kind; the further "
    'devices of single ones, {"ORT.0": ["ORT.1", "ORT.2"]}; or plan: a plan by cost for THROUGHPUT '
    "runs the model on several devices if that is predicted to be best. Other plans then use no "
    "replicas."
)


def check_lists_of(element_name: str) -> Callable[[Mapping[str, Any]], str | None]:
    """Return a check that each value of a mapping is a list of text."""

    def check(lists: Mapping[str, Any]) -> str | None:
        for name, elements in lists.items():
            if not isinstance(elements, list | tuple) or not all(
                isinstance(element, str) for element in elements
            ):
                return f"expected a list of {element_name} for {name!r}"
        return None

    return check


#: A range of replicas: the least and the largest number.
_RANGE: Final = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")


def range_text(minimum: int, maximum: int) -> str:
    """Return the value of REPLICAS for a range."""
    return f"{minimum}..{maximum}"


def range_of(replicas: Any) -> tuple[int, int] | None:
    """Return the bounds of a value of REPLICAS that is a range; None for another value."""
    match = _RANGE.fullmatch(replicas) if isinstance(replicas, str) else None
    return None if match is None else (int(match[1]), int(match[2]))


_AS_NUMBER: Final = Property(NAME, int, 1, mutable=True, doc=_DOC, minimum=1)
_AS_DEVICES: Final = Property(
    NAME, dict, {}, mutable=True, doc=_DOC, check=check_lists_of("devices")
)


@dataclass(frozen=True, slots=True)
class _ReplicasProperty(Property):
    """A property that is a word, a number, a range, or a mapping of devices to devices."""

    def parse(self, value: Any) -> Any:
        if isinstance(value, str) and (word := value.strip().lower()) in (AUTO, PLAN):
            return word
        if isinstance(value, str) and (match := _RANGE.fullmatch(value)):
            bounds = int(match[1]), int(match[2])
            if not 1 <= bounds[0] <= bounds[1]:
                raise PropertyError(
                    f"{NAME}={value!r}: expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4.",
                    property=NAME,
                )
            return range_text(*bounds)
        is_mapping = isinstance(value, Mapping) or str(value).lstrip().startswith("{")
        if not is_mapping and not str(value).strip().lstrip("+-").isdigit():
            raise PropertyError(
                f"{NAME}={value!r}: expected a number, a range such as 1..4, auto, plan, or a "
                'mapping such as {"ORT.0": ["ORT.1"]}.',
                property=NAME,
            )
        return (_AS_DEVICES if is_mapping else _AS_NUMBER).parse(value)


REPLICAS: Final = _ReplicasProperty(NAME, str, PLAN, mutable=True, doc=_DOC, shapes_result=True)
#: Replaced property -> its property, for the conversion of values.
REPLACED: Final = {
    "NUM_REPLICAS": _AS_NUMBER,
    "STAGE_REPLICAS": _AS_DEVICES,
    "MAX_VARIANTS": _AS_NUMBER,
}


def without_replaced(config: Any, *, stacklevel: int) -> Any:
    """Return options with REPLICAS in place of the properties that it replaced, with warnings.

    Raises PropertyError: several of them have a value other than their default.
    """
    if not isinstance(config, Mapping) or REPLACED.keys().isdisjoint(config):
        return config
    values: dict[str, Any] = {}
    for name, replaced in REPLACED.items():
        if name not in config:
            continue
        warn_renamed(name, NAME, stacklevel=stacklevel + 1)
        value = replaced.parse(config[name])
        if name == "MAX_VARIANTS":
            value = PLAN if value > 1 else 1
        if value not in (1, {}):
            values[name] = value
    if len(values) + (NAME in config) > 1:
        names = " and ".join([*values, *([NAME] if NAME in config else [])])
        raise PropertyError(f"{names} set the same property; keep {NAME}.", property=NAME)
    others: Config = {name: value for name, value in config.items() if name not in REPLACED}
    return {NAME: next(iter(values.values()), 1), **others}


def read_replaced(name: str, replicas: Any, *, stacklevel: int) -> Any:
    """Return the value of a replaced property that corresponds to REPLICAS, with a warning."""
    warn_renamed(name, NAME, stacklevel=stacklevel + 1)
    if name == "STAGE_REPLICAS":
        return replicas if isinstance(replicas, Mapping) else {}
    if name == "NUM_REPLICAS":
        return replicas if isinstance(replicas, int) else 1
    return 1
