"""What left the preferred device, and which options would keep it there, in one line."""

from __future__ import annotations

from collections import Counter

from devices.model.model import Model
from devices.plugin.support import Support
from hetero.report.units import counted


def departures(model: Model, support: Support, preferred: str) -> str:
    """Return how many nodes another device has to take, an example, and what would keep them.

    `preferred`: the first device of the list. Empty where it takes all that it may have.
    """
    left = {
        name: refusal
        for name, device in support.devices.items()
        if device != preferred
        and (refusal := support.refusals.get(name, {}).get(preferred)) is not None
    }
    if not left:
        return ""
    takers = dict.fromkeys(support.devices[name] for name in left)
    name, refusal = next(iter(left.items()))
    remedies = Counter(refusal.remedy for refusal in left.values() if refusal.remedy)
    kept = "".join(
        f"; -c {remedy} keeps {'them' if count == len(left) else count}"
        for remedy, count in remedies.most_common()
    )
    operator = model.nodes[model.index_of[name]].op_type
    return (
        f"{counted(len(left), 'node')} left {preferred} for {', '.join(takers)}, as {name!r} "
        f"({operator}): {refusal.message}{kept}"
    )
