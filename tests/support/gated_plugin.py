"""The CPU device under another name; its runs wait until the test opens a gate."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode, Program, RunContext, Value

_PATIENCE_S = 60


class GatedProgram(Program):
    """Runs another program once the gate is open; fails if an input contains 13."""

    def __init__(self, inner: Program) -> None:
        self._inner = inner

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        GatedPlugin.runs.append(len(np.asarray(inputs[0])))
        GatedPlugin.began.set()
        assert GatedPlugin.gate.wait(_PATIENCE_S)
        if (np.asarray(inputs[0]) == 13).any():
            raise ValueError("a row is 13")
        return self._inner.run(inputs, context)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        return self._inner.executed_nodes()


class GatedPlugin(CPUPlugin):
    """Device ``GATED``: the CPU device behind a gate."""

    name: ClassVar[str] = "GATED"
    #: Open, except within `closed`: no test depends on another one that opened it.
    gate: ClassVar[threading.Event] = threading.Event()
    began: ClassVar[threading.Event] = threading.Event()
    #: Rows of each run.
    runs: ClassVar[list[int]] = []

    @classmethod
    @contextmanager
    def closed(cls) -> Iterator[None]:
        """Close the gate, forget earlier runs, and open it at the end."""
        cls.gate.clear()
        cls.began.clear()
        cls.runs.clear()
        try:
            yield
        finally:
            cls.gate.set()

    def compile(self, model: Model, config: Any) -> Program:
        return GatedProgram(super().compile(model, config))


GatedPlugin.gate.set()
