"""Verdicts of verification: which parts agree with the reference, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec

from hetero.devices.plugin.support import Refusal
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.verify.difference import Difference

#: ``agrees``: equal within tolerance. ``refused``: the vendor is wrong, and other devices run the
#: nodes. ``kept``: the vendor is wrong, but no other device can run the nodes. ``disputed``: a
#: third device agrees with the vendor, against the reference. ``not verified``: with the reason.
Status = Literal["agrees", "refused", "kept", "disputed", "not verified"]
#: Plugin of the reference device.
REFERENCE: Final = "CPU"
#: Nodes that a sentence names.
_MAX_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """A wrong result of the smallest failing subgraph.

    Attributes
    ----------
    nodes, op_types : tuple of str
        The nodes of the subgraph, and their operators.
    inputs : tuple of str
        The generated inputs: kind, and name, type, shape and first elements of each.
    difference : Difference or None
        The reference's value and the vendor's; None if the vendor's run failed.
    error : str
        The failure of the vendor's run; empty if it returned a result.
    witness : str
        A third device with its answer; empty without one.
    is_crash : bool
        Whether the vendor's run ended its process.
    """

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    inputs: tuple[str, ...]
    difference: Difference | None = None
    error: str = ""
    witness: str = ""
    is_crash: bool = False

    def sentence(self, device: str, reference: str) -> str:
        """Return both answers as a sentence."""
        nodes = ", ".join(
            f"{op_type} {name!r}"
            for name, op_type in zip(self.nodes[:_MAX_NAMES], self.op_types, strict=False)
        )
        if len(self.nodes) > _MAX_NAMES:
            nodes += f" and {len(self.nodes) - _MAX_NAMES} more"
        if self.difference is None:
            text = f"{device} fails at {nodes}, which {reference} runs: {self.error}"
        else:
            d = self.difference
            (expected, actual) = d.values
            if d.dtypes[0] != d.dtypes[1] or d.shapes[0] != d.shapes[1]:
                expected, actual = (
                    f"{dtype}{list(shape)}" for dtype, shape in zip(d.dtypes, d.shapes, strict=True)
                )
            where = f"[{', '.join(map(str, d.position))}]" if d.position else ""
            text = (
                f"{device} is wrong at {nodes}: {d.name}{where} is {_text(actual)}, {reference} "
                f"gives {_text(expected)} ({d.differing} of {d.size} elements differ)"
            )
        return f"{text}; {self.witness}" if self.witness else text


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """The verdict on a subgraph on a device.

    Attributes
    ----------
    device, reference : str
        The device, and the reference device.
    node_names : tuple of str
        The nodes of the subgraph.
    status : str
        One of `Status`.
    reason : str
        A sentence: the evidence, or the reason why the subgraph is not verified.
    evidence : tuple of Evidence
        The wrong results.
    """

    device: str
    reference: str
    node_names: tuple[str, ...]
    status: Status
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of a compiled model.

    Attributes
    ----------
    verdicts : tuple of PartVerdict
        The verdicts on the subgraphs, including those of earlier plans with refused nodes.
    seconds : float
        Duration; about 0 if all verdicts were known.
    """

    verdicts: tuple[PartVerdict, ...] = ()
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        """Return the number of subgraphs with a status."""
        return sum(verdict.status == status for verdict in self.verdicts)

    def sentences(self) -> list[str]:
        """Return the numbers of subgraphs by status, and the reasons of those that differ."""
        if not self.verdicts:
            return []
        phrases = {"agrees": "equal to the reference"}
        counts = [
            f"{n} {phrases.get(status, status)}"
            for status in get_args(Status)
            if (n := self.count(status))
        ]
        reasons = [
            f"{verdict.device}: {verdict.status}: {verdict.reason}"
            for verdict in self.verdicts
            if verdict.status != "agrees"
        ]
        head = f"verified subgraphs in {self.seconds * 1e3:.0f} ms: {', '.join(counts)}"
        return [head, *dict.fromkeys(reasons)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN becomes None."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


def is_vendor(device: DeviceDescriptor) -> bool:
    """Return whether the results of a device are verified against the reference."""
    return device.plugin != REFERENCE and device.computes


def refusals_of(verdict: PartVerdict) -> dict[str, Refusal]:
    """Return the refusals of the nodes that a device runs wrongly."""
    if verdict.status not in ("refused", "kept"):
        return {}
    return {
        node: Refusal(
            "crash" if evidence.is_crash else "wrong_result",
            evidence.sentence(verdict.device, verdict.reference),
        )
        for evidence in verdict.evidence
        for node in evidence.nodes
    }
