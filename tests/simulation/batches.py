"""Due time of the batches of a batcher."""

from __future__ import annotations

from hetero.scheduler.client.batching import Batcher


def next_due_s(batcher: Batcher) -> float | None:
    """Return the time at which the oldest waiting batch is due; None if no batch can start."""
    if not batcher._groups or not batcher._has_room:
        return None
    oldest_s = min(group.oldest[1] for group in batcher._groups.values())
    return oldest_s + batcher._batching.timeout_s
