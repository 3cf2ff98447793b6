"""Results of a request: output values by port, name or position, and profiling information."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from hetero.devices.model.html_table import html_table
from hetero.devices.model.ports import find_port
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor

#: Number of elements in the preview of a value.
_PREVIEW_SIZE: Final = 6


class Results(Mapping[TensorSpec, Value]):
    """Read-only mapping of output ports to values.

    Positions and names are also valid keys: ``results[0]``, ``results[-1]``, ``results["name"]``.

    Parameters
    ----------
    ports : sequence of TensorSpec
        The outputs, in the model's order; the same value may occur twice.
    values : mapping of str to value
        Output name -> value.
    """

    def __init__(self, ports: Sequence[TensorSpec], values: Mapping[str, Value]) -> None:
        self._ports = tuple(ports)
        self._values: dict[str, Value] = {}
        for port in ports:  # faster than a comprehension
            self._values[port.name] = values[port.name]

    def __getitem__(self, key: str | int | TensorSpec) -> Value:
        return self._values[find_port(self._ports, key, "output").name]

    def __contains__(self, key: object) -> bool:
        return key in self._values or (isinstance(key, TensorSpec) and key in self._ports)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter({port.name: port for port in self._ports}.values())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name!r} {_type_text(v)}" for name, v in self._values.items())
        return f"<Results: {outputs}>"

    def _repr_html_(self) -> str:
        rows = [(name, _type_text(v), _preview(v)) for name, v in self._values.items()]
        return html_table("Results", ("output", "type", "begins with"), rows)

    def names(self) -> tuple[set[str], ...]:
        """Return the names of each output; as in OpenVINO, each entry is a set."""
        return tuple({port.name} for port in self._ports)

    def to_dict(self) -> dict[TensorSpec, Value]:
        """Return the values by port."""
        return dict(self.items())

    def with_bytes(self) -> Results:
        """Return results with text encoded as UTF-8 bytes."""
        return Results(self._ports, {name: _encode_strings(v) for name, v in self._values.items()})

    def by_name(self) -> dict[str, Value]:
        """Return the values by name."""
        return dict(self._values)

    def to_tuple(self) -> tuple[Value, ...]:
        """Return one value per output, in order."""
        return tuple(self._values[port.name] for port in self._ports)


def _type_text(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{'string' if value.dtype == object else value.dtype}{list(value.shape)}"
    return str(value) if isinstance(value, RemoteTensor) else type(value).__name__


def _preview(value: Value) -> str:
    if not isinstance(value, np.ndarray):
        return ""
    first = ", ".join(
        f"{item:.5g}" if isinstance(item, float) else str(item)
        for item in value.ravel()[:_PREVIEW_SIZE].tolist()
    )
    return f"{first}, …" if value.size > _PREVIEW_SIZE else first


def _encode_strings(value: Value) -> Value:
    is_text = isinstance(value, np.ndarray) and value.dtype == object
    return np.char.encode(value.astype(str), "utf-8") if is_text else value


class ProfilingStatus(StrEnum):
    """Whether an entry of a profile was executed."""

    NOT_RUN = "NOT_RUN"
    OPTIMIZED_OUT = "OPTIMIZED_OUT"
    EXECUTED = "EXECUTED"


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """Entry of a request's profile: a stage, or an executed node.

    Attributes
    ----------
    node_name : str
        Name of the stage or executed node.
    node_type : str
        The operator; empty for stages.
    exec_type : str
        The implementation or device.
    status : ProfilingStatus
        Whether the entry was executed and timed.
    real_time, cpu_time : datetime.timedelta
        Wall time, and processor time if the device measures it separately.
    """

    node_name: str
    node_type: str
    exec_type: str
    status: ProfilingStatus
    real_time: timedelta
    cpu_time: timedelta

    Status: ClassVar = ProfilingStatus
    NOT_RUN, OPTIMIZED_OUT, EXECUTED = ProfilingStatus
