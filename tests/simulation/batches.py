"""When a batch is due, of those that wait."""

from __future__ import annotations

from hetero.scheduler.client.batching import Batcher


def next_due_s(batcher: Batcher) -> float | None:
    """When a batch is fired as its oldest request has waited for so long, or None."""
    if not batcher._groups or not batcher._has_room:
        return None
    oldest_s = min(group.oldest[1] for group in batcher._groups.values())
    return oldest_s + batcher._batching.timeout_s
