"""The cost model: what nodes, subgraphs and transfers take, measured on devices or estimated."""

from hetero.planning.cost.costs import (
    Costs,
    DeviceCosts,
    DeviceIdentity,
    Line,
    Source,
    Time,
    Transfer,
)

__all__ = ["Costs", "DeviceCosts", "DeviceIdentity", "Line", "Source", "Time", "Transfer"]
