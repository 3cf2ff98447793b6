"""A compiled model whose requests are shared among several plans, whole replicas included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO, NoReturn

from devices.errors import UnsupportedOperationError
from hetero.compiled_model import CompiledModel
from hetero.partition import Subgraph
from hetero.planning import PlanReport
from hetero.routing import RoutedDeployment


class RoutedModel(CompiledModel):
    """Variants of one compiled model behind one set of ports.

    Its subgraphs are those of all variants, numbered through.

    Parameters
    ----------
    variants : sequence of CompiledModel
        The same model, compiled by different plans; they are closed with this one.
    shares : sequence of float
        How requests are shared among them.
    report : PlanReport
        How the plans were chosen.
    """

    def __init__(
        self, variants: Sequence[CompiledModel], shares: Sequence[float], report: PlanReport
    ) -> None:
        first = variants[0]
        super().__init__(
            first.partition,
            first.affinity,
            first.plan,
            RoutedDeployment([v.deployment for v in variants], shares),
            first.compilation,
            loaded_from_cache=all(v.get_property("LOADED_FROM_CACHE") for v in variants),
        )
        self.variants = tuple(variants)
        # A request of this model needs every variant, also after the model itself is dropped.
        self.deployed.parts = tuple(variant.deployed for variant in variants)
        self.shares = tuple(shares)
        self._report = report

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs of all variants, numbered through."""
        found: list[Subgraph] = []
        for variant in self.variants:
            offset = len(found)
            found += [replace(s, index=s.index + offset) for s in variant.subgraphs]
        return tuple(found)

    @property
    def plan_report(self) -> PlanReport:
        """How the plans were chosen."""
        return self._report

    def get_property(self, name: str) -> Any:
        """Return a property; enough requests to keep every variant busy are those of all."""
        if name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
            enough = sum(v.get_property(name) for v in self.variants)
            return min(enough, self.get_property("PERFORMANCE_HINT_NUM_REQUESTS") or enough)
        return super().get_property(name)

    def export_model(self, target: str | BinaryIO | Any = None) -> NoReturn:
        """Refuse: a blob holds one plan.

        Raises
        ------
        UnsupportedOperationError
            Always.
        """
        raise UnsupportedOperationError(
            f"model {self.name!r}: its requests are shared among {len(self.variants)} plans, and a "
            "blob holds one. Export one of `variants`, or compile with MAX_VARIANTS=1."
        )
