"""Results of queries: the device that supports each node, and refusals with their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from hetero.devices.model.html_table import html_table

RefusalCode = Literal[
    "dtype",
    "opset",
    "attribute",
    "no_kernel",
    "dynamic_shape",
    "memory",
    "policy",
    "wrong_result",
    "crash",
]
REFUSAL_CODES: Final = frozenset(get_args(RefusalCode))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a device does not support a node.

    Attributes
    ----------
    code : str
        Kind of reason, for programs.
    message : str
        A sentence for users.
    remedy : str
        An option that makes the device support the node, ``NAME=VALUE``; empty if there is none.
    """

    code: RefusalCode
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.code not in REFUSAL_CODES:
            raise ValueError(
                f"expected a refusal code of {sorted(REFUSAL_CODES)}, got {self.code!r}"
            )

    def __str__(self) -> str:
        remedy = f"; set {self.remedy}" if self.remedy else ""
        return f"{self.message}{remedy} [{self.code}]"


@dataclass(frozen=True, slots=True, repr=False)
class Support(Mapping[str, str]):
    """Result of `query_model`: a mapping of supported nodes to device names.

    Attributes
    ----------
    devices : mapping of str to str
        Node name -> device, for supported nodes in the model's order.
    unsupported : mapping of str to mapping of str to Refusal
        Node name -> {device: refusal}, for nodes that no device supports.
    refusals : mapping of str to mapping of str to Refusal
        Node name -> {device: refusal}, also for nodes that another device supports.
    notes : mapping of str to str
        Node name -> remark on the execution of a supported node, such as a delegation to another
        runtime.
    """

    devices: Mapping[str, str]
    unsupported: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.devices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __hash__(self) -> int:
        return hash(tuple(self.devices.items()))

    def __repr__(self) -> str:
        counts = Counter(self.devices.values())
        parts = [f"{count} on {device}" for device, count in counts.items()]
        parts += [f"{len(self.unsupported)} unsupported"] if self.unsupported else []
        return f"<Support of {len(self.devices) + len(self.unsupported)} nodes: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        unsupported = (
            (node, "none", "; ".join(f"{d}: {refusal}" for d, refusal in refusals.items()))
            for node, refusals in self.unsupported.items()
        )
        supported = (
            (node, device, self.notes.get(node, "")) for node, device in self.devices.items()
        )
        return html_table(repr(self)[1:-1], ("node", "device", ""), [*unsupported, *supported])
