"""Failures of exports and of the cache do not prevent compilation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from hetero.cache.entry import CacheEntry
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


class FaultyExport(Program):
    """A program whose export raises an exception or has an invalid header."""

    def __init__(self, inner: Program, export: Any) -> None:
        self._inner, self._export = inner, export

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        return self._inner.run(inputs, context)

    def export(self) -> Payload:
        if isinstance(self._export, BaseException):
            raise self._export
        return Payload(self._export, {})


class BadExports(CPUPlugin):
    """The CPU device with a fault: exports raise `export` or have it as their header."""

    name: ClassVar[str] = "BAD"
    export: ClassVar[Any] = None

    def compile(self, model: Model, config: Config) -> Program:
        return FaultyExport(super().compile(model, config), self.export)


core = core_fixture(plugins=[BadExports])


EXPORTS = {
    "an exception": RuntimeError("broken by design"),
    "an OSError": OSError(5, "Input/output error"),
    "a header of objects": {"key": object()},
    "a header of numbers too large": {"key": 2**200},
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_export_failure_still_compiles_with_warning(
    core,
    tmp_path,
    monkeypatch,
    caplog,
    export,
):
    monkeypatch.setattr(BadExports, "export", export)
    pins = {"op:Neg": "CPU"}
    config = {"CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        with core.compile_model(branches(), "HETERO:BAD,CPU", config, affinity=pins) as compiled:
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("not stored" in line for line in warnings)
    # The export of the other device is stored.
    assert len(list(tmp_path.glob("*.stage"))) == 1


def test_relative_cache_dir_in_deleted_working_directory(
    core,
    tmp_path,
    monkeypatch,
    caplog,
):
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    with core.compile_model(branches(), "CPU", {"CACHE_DIR": "cache"}) as compiled:
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
    assert "not cached" in caplog.text


def test_interrupt_while_storing_closes_the_deployment(core, tmp_path, monkeypatch):
    closed = []
    deploy = core.executor.deploy

    def deploy_with_log(*arguments: Any, **options: Any) -> Any:
        deployment = deploy(*arguments, **options)
        close = deployment.close
        monkeypatch.setattr(deployment, "close", lambda: (closed.append(deployment), close()))
        return deployment

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core.executor, "deploy", deploy_with_log)
    monkeypatch.setattr(CacheEntry, "store", interrupt)
    with pytest.raises(KeyboardInterrupt):
        core.compile_model(branches(), "CPU", {"CACHE_DIR": str(tmp_path)})
    assert len(closed) == 1
