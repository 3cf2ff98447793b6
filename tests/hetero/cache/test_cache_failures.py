"""The cache and exports that fail: the model is compiled all the same, and nothing stays behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import hetero
from hetero.cache.entry import CacheEntry
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


class _Program(Program):
    """A program whose export is none."""

    def __init__(self, inner: Program, export: Any) -> None:
        self._inner, self._export = inner, export

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        return self._inner.run(inputs, context)

    def export(self) -> Payload:
        made = self._export
        if isinstance(made, BaseException):
            raise made
        return Payload(made, {})


class BadExports(CPUPlugin):
    """The CPU device, whose exports raise `export` or have it for a header."""

    name: ClassVar[str] = "BAD"
    export: ClassVar[Any] = None

    def compile(self, model: Model, config: Config) -> Program:
        made: Any = _Program(super().compile(model, config), self.export)
        return made


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", plugins=[BadExports]) as made:
        yield made


EXPORTS = {
    "an exception": RuntimeError("broken by design"),
    "an OSError": OSError(5, "Input/output error"),
    "a header of objects": {"made": object()},
    "a header of numbers too large": {"made": 2**200},
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_an_export_that_fails_leaves_a_compiled_model_and_a_reason(
    core: hetero.Core,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    export: Any,
) -> None:
    monkeypatch.setattr(BadExports, "export", export)
    pins = {"op:Neg": "CPU"}
    config = {"CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        with core.compile_model(branches(), "HETERO:BAD,CPU", config, affinity=pins) as compiled:
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("not kept" in line for line in warnings)
    # What the other device exports is kept all the same.
    assert len(list(tmp_path.glob("*.stage"))) == 1


def test_a_relative_folder_in_a_working_directory_that_is_gone(
    core: hetero.Core,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with core.compile_model(branches(), "CPU", {"CACHE_DIR": "cache"}) as compiled:
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
    assert "not kept" in caplog.text


def test_what_ends_keeping_gives_the_devices_back(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    deploy = core.executor.deploy

    def watched(*arguments: Any, **options: Any) -> Any:
        deployment = deploy(*arguments, **options)
        close = deployment.close
        monkeypatch.setattr(deployment, "close", lambda: (closed.append(deployment), close()))
        return deployment

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core.executor, "deploy", watched)
    monkeypatch.setattr(CacheEntry, "keep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        core.compile_model(branches(), "CPU", {"CACHE_DIR": str(tmp_path)})
    assert len(closed) == 1
