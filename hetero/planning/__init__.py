"""Plans by cost: what is measured, what is searched, and the report of what was chosen."""

from hetero.planning.report import (
    Alternative,
    PlanReport,
    StagePrediction,
    WirePrediction,
)

__all__ = [
    "Alternative",
    "PlanReport",
    "StagePrediction",
    "WirePrediction",
]
