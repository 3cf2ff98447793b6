"""What a device says of each node: that it takes it, or why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from hetero.devices.model.html_table import html_table

RefusalCode = Literal[
    "dtype", "opset", "attribute", "no_kernel", "dynamic_shape", "memory", "policy"
]
REFUSAL_CODES: Final = frozenset(get_args(RefusalCode))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a device does not take a node.

    Attributes
    ----------
    code : str
        What kind of reason it is, for programs.
    message : str
        A sentence for people.
    remedy : str
        The option with which the device takes it, ``NAME=VALUE``; empty where there is none.
    """

    code: RefusalCode
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.code not in REFUSAL_CODES:
            raise ValueError(f"refusal code {self.code!r} is not one of {sorted(REFUSAL_CODES)}")

    def __str__(self) -> str:
        remedy = f"; {self.remedy} lets it" if self.remedy else ""
        return f"{self.message}{remedy} [{self.code}]"


@dataclass(frozen=True, slots=True, repr=False)
class Support(Mapping[str, str]):
    """The answer of `query_model`: node name -> device name, unsupported nodes absent.

    Attributes
    ----------
    devices : mapping of str to str
        Each supported node's device, in the model's order.
    unsupported : mapping of str to mapping of str to Refusal
        Each other node's refusals, one for every device that was asked.
    refusals : mapping of str to mapping of str to Refusal
        All refusals heard, those of nodes that a later device took included.
    notes : mapping of str to str
        How a supported node is run where that is worth saying (delegated, decomposed).
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
        shown = [f"{count} on {device}" for device, count in counts.items()]
        shown += [f"{len(self.unsupported)} unsupported"] if self.unsupported else []
        return f"<Support of {len(self.devices) + len(self.unsupported)} nodes: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        refused = (
            (node, "none", "; ".join(f"{d}: {refusal}" for d, refusal in refusals.items()))
            for node, refusals in self.unsupported.items()
        )
        taken = ((node, device, self.notes.get(node, "")) for node, device in self.devices.items())
        return html_table(repr(self)[1:-1], ("node", "device", ""), [*refused, *taken])
