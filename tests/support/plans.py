"""Plans by costs that are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hetero
from hetero.devices.model.reader import read_model
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.costs import Line, Transfer
from hetero.planning.cost.profile_request import identify
from tests.support.costs import costs
from tests.support.models import branches


def planned(core: hetero.Core, folder: Path, times_s: dict[str, float], **more: Any) -> Any:
    """Return a configuration for plans by costs that are given, in whole replicas."""
    model = read_model(branches())
    line = Line(1.0, 0.0, "measured")
    given = costs(model, {d: dict.fromkeys(model.node_names, t) for d, t in times_s.items()})
    described = {d.name: d for d in core.device_descriptors}
    devices = {
        n: replace(device, identity=identify(described[n], {}))
        for n, device in given.devices.items()
    }
    # Ends cost nothing and wires a second: a plan has one device.
    transfers = dict.fromkeys(given.transfers, Transfer(line, Line(0.0, 0.0, "measured")))
    write_costs(replace(given, devices=devices, transfers=transfers), folder / "costs.json")
    return {
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "MAX_VARIANTS": 4,
        "COLOCATION": {"all": ["*"]},
        "PLAN_SECONDS": 0.1,
        "COST_FILE": str(folder / "costs.json"),
        **more,
    }
