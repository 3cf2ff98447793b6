"""Configurations for plans with fixed costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hetero
from hetero.devices.model.reader import read_model
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.costs import LinearCost, Transfer
from hetero.planning.cost.profile_request import identify_device
from tests.support.costs import costs
from tests.support.models import branches


def replica_config(core: hetero.Core, folder: Path, times_s: dict[str, float], **more: Any) -> Any:
    """Return a configuration for plans with fixed costs and whole-model replicas."""
    model = read_model(branches())
    line = LinearCost(1.0, 0.0, "measured")
    model_costs = costs(model, {d: dict.fromkeys(model.node_names, t) for d, t in times_s.items()})
    descriptors = {d.name: d for d in core.device_descriptors}
    devices = {
        n: replace(device, identity=identify_device(descriptors[n], {}))
        for n, device in model_costs.devices.items()
    }
    # Transfers take a second, so that each plan uses a single device.
    transfers = dict.fromkeys(
        model_costs.transfers, Transfer(line, LinearCost(0.0, 0.0, "measured"))
    )
    write_costs(replace(model_costs, devices=devices, transfers=transfers), folder / "costs.json")
    return {
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "COLOCATION": {"all": ["*"]},
        "PLAN_SECONDS": 0.1,
        "COST_FILE": str(folder / "costs.json"),
        **more,
    }
