"""What a report is made from: a model, what each device says of all of it, and who gets what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hetero.affinity.affinity import NO_PINS, Affinity
from hetero.devices.model.model import Model
from hetero.devices.model.notebook import html_table
from hetero.devices.plugin.support import Support
from hetero.scheduler.vocabulary.rows import DeviceDescriptor


@dataclass(frozen=True, slots=True, repr=False)
class Survey:
    """Every device asked about the whole model, and the affinity that follows.

    Attributes
    ----------
    model : Model
        The model.
    request : str
        The device string.
    devices : tuple of DeviceDescriptor
        The devices that it means, the most preferred first.
    answers : mapping of str to Support
        Device name -> its answer about the whole model, regardless of the others.
    support : Support
        What the devices take between them, as `Core.query_model` says.
    affinity : Affinity
        Which device each node gets, and why; nodes that no device takes are absent.
    pins : Affinity
        What the user asked for by hand.
    query_s : mapping of str to float
        Seconds that each device took to answer.
    config : mapping
        Properties given.
    shapes : mapping of str to tuple of int
        The shapes that sizes are told for, of inputs with open dimensions; empty if none is given.
    """

    model: Model
    request: str
    devices: tuple[DeviceDescriptor, ...]
    answers: Mapping[str, Support]
    support: Support
    affinity: Affinity
    pins: Affinity = NO_PINS
    query_s: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Survey of {self.model.name!r} on {self.request}: {self.support!r}>"

    def _repr_html_(self) -> str:
        nodes = ((node.name, node.op_type) for node in self.model.nodes)
        rows = [
            (
                name,
                op_type,
                self.affinity.get(name, "none"),
                *(self._said(d, name) for d in self.names),
            )
            for name, op_type in nodes
        ]
        caption = f"{self.model.name} on {self.request}"
        return html_table(caption, ("node", "operator", "gets", *self.names), rows)

    def _said(self, device: str, node: str) -> str:
        refusals = self.answers[device].unsupported.get(node, {})
        return "; ".join(str(refusal) for refusal in refusals.values()) or "yes"

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names, the most preferred first."""
        return tuple(device.name for device in self.devices)
