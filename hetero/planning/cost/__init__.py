"""The cost model: what nodes, subgraphs and transfers take, measured on devices or estimated."""

from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    DeviceIdentity,
    Line,
    Pace,
    Source,
    Time,
    Transfer,
)

__all__ = [
    "CLIENT",
    "Costs",
    "DeviceCosts",
    "DeviceIdentity",
    "Line",
    "Pace",
    "Source",
    "Time",
    "Transfer",
]
