"""Seeded random affinities over the devices that support each node."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hetero
from hetero.devices.model.model import Model


def random_affinity(
    core: hetero.Core, model: Model, devices: Sequence[str], seed: int
) -> dict[str, str]:
    """Return a random device for each node, among the `devices` that support it."""
    rng = random.Random(seed)
    survey = core.survey_model(model, f"HETERO:{','.join(devices)}")
    answers = {
        device: {
            node
            for name, answer in survey.results.items()
            if f"{name}.".startswith(f"{device}.")
            for node in answer.devices
        }
        for device in devices
    }
    placed = {}
    for name in model.node_names:
        able = [device for device in devices if name in answers[device]]
        if able:
            placed[name] = rng.choice(able)
    return placed
