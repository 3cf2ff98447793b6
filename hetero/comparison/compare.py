"""Compare a model on two devices and find the first node whose values differ.

The outputs are compared first. If they differ, the graph is bisected: a prefix of the nodes is
compiled on both devices, with every value that the remaining nodes need as an output. The first
differing node lies between the longest prefix that agrees and the shortest one that differs. Only
values that cross the end of the prefix are outputs, so each device can fuse nodes as it does in
the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hetero.affinity.affinity import NO_PINS, Affinity, resolve_pins
from hetero.devices.errors import AffinityError, DeviceError, HeteroError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source
from hetero.scheduler.types.device_names import parse_device
from hetero.verify.bisection import Prefixes, first_failure
from hetero.verify.difference import ATOL, RTOL, Difference, differences_of

if TYPE_CHECKING:
    from hetero.devices.plugin.properties import Config
from hetero.core import Core

#: Options that leave wrong nodes on their device.
_RAW: Final = {"VERIFY": "NO"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two devices.

    Attributes
    ----------
    model : str
        The model's name.
    devices : tuple of (str, str)
        The devices; differences are relative to the first.
    rtol, atol : float
        Elements differ if ``abs(a - b) > atol + rtol * abs(a)``.
    outputs : tuple of Difference
        Each output of the model, agreeing ones included.
    node, op_type : str or None
        The first node whose values differ; None if all outputs agree.
    suspects : tuple of str
        Nodes between the last prefix that agrees and the first that does not: `node` alone, or
        several where the types of values between them are not known.
    values : tuple of Difference
        Outputs of those nodes that differ.
    alone : tuple of Difference or None
        Outputs of `node` when both devices run it alone on the first device's inputs. If they
        agree, the difference comes from fusion with earlier nodes, or has accumulated over them.
        None if the node could not run alone.
    runs : int
        Number of prefixes that ran on both devices.
    """

    model: str
    devices: tuple[str, str]
    rtol: float
    atol: float
    outputs: tuple[Difference, ...]
    node: str | None = None
    op_type: str | None = None
    suspects: tuple[str, ...] = ()
    values: tuple[Difference, ...] = ()
    alone: tuple[Difference, ...] | None = None
    runs: int = 0

    @property
    def agrees(self) -> bool:
        """Whether every output is equal within tolerance."""
        return all(output.agrees for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, including `agrees`; NaN becomes None."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {"agrees": self.agrees} | plain

    def sentence(self) -> str:
        """Return the result as a sentence."""
        a, b = self.devices
        if self.agrees:
            worst = max((o.max_abs for o in self.outputs if o.max_abs == o.max_abs), default=0.0)
            return f"{a} and {b} agree: largest difference {worst:.3g}"
        wrong = sum(not output.agrees for output in self.outputs)
        text = f"{a} and {b} differ in {wrong} of {len(self.outputs)} outputs"
        if self.node is None:
            return f"{text}; every prefix of the graph agrees"
        text += f"; first at node {self.node!r} ({self.op_type})"
        if self.alone is not None:
            differs = any(not value.agrees for value in self.alone)
            text += (
                ", also when it runs alone"
                if differs
                else "; alone it agrees: the difference comes from fusion or from earlier nodes"
            )
        return text


def compare(
    core: Core,
    model: Source | Model,
    devices: Sequence[str],
    inputs: Mapping[str, Any],
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    config: Config | None = None,
    affinity: Mapping[str, str] | None = None,
) -> Comparison:
    """Run a model on two devices and find the first node that differs.

    Parameters
    ----------
    core : Core
        The core that has the devices.
    model : path, bytes, onnx.ModelProto or Model
        The model.
    devices : sequence of str
        Two device strings, the reference first. Either may be a list such as ``HETERO:ORT,CPU``.
    inputs : mapping of str to array
        A value for each input.
    rtol, atol : float
        Relative and absolute tolerance.
    config : mapping, optional
        Options for both compilations.
    affinity : mapping of str to str, optional
        Pins for device lists, {pattern: device}, as for `Core.compile_model`.

    Raises
    ------
    DeviceError
        If there are not exactly two devices.
    AffinityError
        If a pin matches no node, or neither device string is a list.
    UnsupportedNodesError
        If one of the devices cannot run the model alone.
    """
    if len(devices) != 2:
        raise DeviceError(
            f"compare: expected two devices, the reference first; got {list(devices)}.",
            device=",".join(devices),
        )
    source = core.read_model(model)
    if affinity and not any(parse_device(device).hetero for device in devices):
        raise AffinityError(
            f"model {source.name!r}: pins need a device list, but {' and '.join(devices)} are "
            "single devices; remove the pins, or compare with HETERO:A,B."
        )
    pins = resolve_pins(source, affinity) if affinity else NO_PINS
    search = _Search(core, source, (devices[0], devices[1]), dict(inputs), rtol, atol, config, pins)
    outputs = search.run(source, search.inputs)[1]
    comparison = Comparison(source.name, search.devices, rtol, atol, outputs)
    return comparison if comparison.agrees else search.bisect(comparison)


@dataclass
class _Search:
    """Bisection over the prefixes of one model on two devices."""

    core: Core
    model: Model
    devices: tuple[str, str]
    inputs: Mapping[str, Any]
    rtol: float
    atol: float
    config: Config | None
    pins: Affinity
    #: The first device's outputs of the longest prefix that agrees.
    prefix_values: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self, part: Model, inputs: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[Difference, ...]]:
        """Run a model on both devices; return the first one's outputs, and the differences."""
        results = []
        pins = {f"name:{n}": d for n, d in self.pins.items() if n in part.index_of}
        for device in self.devices:
            device_pins = pins if parse_device(device).hetero else None
            # A part may lack the end of a state, so initial states are passed as inputs.
            with self.core.compile_model(
                part, device, {**(self.config or {}), **_RAW}, affinity=device_pins, states={}
            ) as compiled:
                values = {port.name: inputs[port.name] for port in part.inputs}
                results.append(compiled(values).by_name())
        first, second = results
        return first, tuple(
            d
            for name in first
            for d in differences_of(name, first[name], second[name], self.rtol, self.atol)
        )

    def bisect(self, comparison: Comparison) -> Comparison:
        """Find the shortest prefix that differs although the one before it agrees."""
        prefixes = Prefixes(self.model)
        ends = prefixes.end_positions
        differences: dict[int, tuple[Difference, ...]] = {}

        def agrees(end: int) -> bool:
            first, differences[end] = self.run(prefixes.model(end), self.inputs)
            agrees = all(d.agrees for d in differences[end])
            if agrees:
                self.prefix_values = first
            return agrees

        low, high = first_failure(ends, agrees)
        end = ends[high] if high < len(ends) else len(self.model.nodes) - 1
        begin = ends[low] + 1 if low >= 0 else 0
        suspects = tuple(node.name for node in self.model.nodes[begin : end + 1])
        values = differences[end] if high < len(ends) else comparison.outputs
        outputs = {v for node in self.model.nodes[begin : end + 1] for v in node.writes}
        differing = tuple(d for d in values if not d.agrees and d.name.partition("[")[0] in outputs)
        wrong = {d.name.partition("[")[0] for d in differing}
        producers = (p for p in range(begin, end) if wrong & set(self.model.nodes[p].writes))
        node = next(producers, end)
        return replace(
            comparison,
            node=self.model.nodes[node].name,
            op_type=self.model.nodes[node].op_type,
            suspects=suspects,
            values=differing,
            alone=self._compare_node(node) if begin == end else None,
            runs=len(differences),
        )

    def _compare_node(self, position: int) -> tuple[Difference, ...] | None:
        """Run one node on both devices, on the first device's inputs."""
        node = self.model.nodes[position]
        values = {**self.inputs, **self.prefix_values}
        part = self.model.extract([position], list(node.writes))
        if any(port.name not in values for port in part.inputs):
            return None
        try:
            return self.run(part, values)[1]
        except HeteroError:
            # For example an open type: only the prefix's differences are reported then.
            return None
