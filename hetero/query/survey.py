"""Survey of a model: every device's query result, and the affinity that follows from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero.affinity.affinity import NO_PINS, Affinity
from hetero.devices.model.html_table import html_table
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.scheduler.types.device_descriptor import DeviceDescriptor


@dataclass(frozen=True, slots=True, repr=False)
class Survey:
    """Query results of every device for the whole model, and the resulting affinity.

    Attributes
    ----------
    model : Model
        The model.
    request : str
        The device string.
    devices : tuple of DeviceDescriptor
        The devices of the string, in order of priority.
    results : mapping of str to Support
        Device name -> its support of the whole model, regardless of the other devices.
    support : Support
        The devices' joint support, as returned by `Core.query_model`.
    affinity : Affinity
        The device of each node, with the reason; unsupported nodes are absent.
    pins : Affinity
        The user's pins.
    query_s : mapping of str to float
        Device name -> seconds that its query took.
    config : mapping
        The caller's properties.
    shapes : mapping of str to tuple of int
        Input name -> the caller's shape of an input with open dimensions.
    verification : mapping of str to str
        Device name -> result of the verification of its subgraphs by earlier compilations
        (``VERIFY``); devices without one are absent.
    """

    model: Model
    request: str
    devices: tuple[DeviceDescriptor, ...]
    results: Mapping[str, Support]
    support: Support
    affinity: Affinity
    pins: Affinity = NO_PINS
    query_s: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    verification: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Survey of {self.model.name!r} on {self.request}: {self.support!r}>"

    def _repr_html_(self) -> str:
        nodes = ((node.name, node.op_type) for node in self.model.nodes)
        rows = [
            (
                name,
                op_type,
                self.affinity.get(name, "none"),
                *(self._describe_support(d, name) for d in self.names),
            )
            for name, op_type in nodes
        ]
        caption = f"{self.model.name} on {self.request}"
        return html_table(caption, ("node", "operator", "gets", *self.names), rows)

    def save(self, path: str | Path) -> None:
        """Write a report about the survey.

        Parameters
        ----------
        path : path
            ``.html`` writes a self-contained page, ``.json`` the document behind it, ``.onnx`` the
            model with each node's device and reason as metadata, which Netron shows and
            `Core.compile_model` follows.

        Raises
        ------
        ArgumentError
            The file name has another suffix.
        """
        from hetero.report.save import save_report  # reports are made from surveys

        save_report(self, path)

    def _describe_support(self, device: str, node: str) -> str:
        refusals = self.results[device].unsupported.get(node, {})
        return "; ".join(str(refusal) for refusal in refusals.values()) or "yes"

    @property
    def answers(self) -> Mapping[str, Support]:
        """Deprecated alias of `results`."""
        warnings.warn("Survey.answers is now Survey.results", DeprecationWarning, stacklevel=2)
        return self.results

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names, in order of priority."""
        return tuple(device.name for device in self.devices)
