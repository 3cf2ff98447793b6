"""Seeded random affinities over the devices that support each node."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hetero
from devices.model.model import Model


def random_affinity(
    core: hetero.Core, model: Model, devices: Sequence[str], seed: int
) -> dict[str, str]:
    """Return a random device for each node, among those of `devices` that take it."""
    rng = random.Random(seed)
    answers = {}
    for device in devices:  # each first in a list: alone it may take more than beside others
        listed = ",".join([device, *(other for other in devices if other != device)])
        support = core.query_model(model, f"HETERO:{listed}")
        answers[device] = {n for n, d in support.items() if f"{d}.".startswith(f"{device}.")}
    placed = {}
    for name in model.node_names:
        able = [device for device in devices if name in answers[device]]
        if able:
            placed[name] = rng.choice(able)
    return placed
