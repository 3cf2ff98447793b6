"""A compiled model whose requests are shared among several plans, whole replicas included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from devices.plugin.program import ExecutedNode
from hetero.cache.blob import Cut
from hetero.compiled_model import CompiledModel
from hetero.partition.partition import Subgraph
from scheduler.executor import Deployment


class RoutedModel(CompiledModel):
    """Variants of one compiled model behind one set of ports.

    Its subgraphs are those of all variants, numbered through.

    `variants`: the same model, compiled by different plans; they are closed with this one.
    `deployment`: shares requests among the variants' deployments.
    """

    def __init__(
        self,
        variants: Sequence[CompiledModel],
        deployment: Deployment,
        shares: Sequence[float],
    ) -> None:
        first = variants[0]
        super().__init__(
            first.partition,
            first.affinity,
            first.plan,
            deployment,
            first.compilation,
            loaded_from_cache=first.get_property("LOADED_FROM_CACHE"),
        )
        self.variants = tuple(variants)
        # A request of this model needs every variant, also after the model itself is dropped.
        self.target.parts = tuple(variant.target for variant in variants)
        self.shares = tuple(shares)

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs of all variants, numbered through."""
        found: list[Subgraph] = []
        for variant in self.variants:
            offset = len(found)
            found += [replace(s, index=s.index + offset) for s in variant.subgraphs]
        return tuple(found)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """How the model was cut and placed, once for each variant."""
        return tuple(
            Cut(v.partition, v.affinity, share)
            for v, share in zip(self.variants, self.shares, strict=True)
        )

    def _executed_plans(self) -> Sequence[Sequence[ExecutedNode]]:
        ends = accumulate(len(variant.subgraphs) for variant in self.variants)
        return [self.target.executed_nodes(range(*stages)) for stages in pairwise((0, *ends))]

    def get_property(self, name: str) -> Any:
        """Return a property; enough requests to keep every variant busy are those of all."""
        if name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
            enough = sum(v.get_property(name) for v in self.variants)
            return min(enough, self.get_property("PERFORMANCE_HINT_NUM_REQUESTS") or enough)
        return super().get_property(name)
