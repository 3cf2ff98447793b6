"""Compatibility check of blobs: its verdict equals the outcome of an import."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices import errors
from hetero.devices.errors import HeteroError
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PINS = {"op:Neg": "CPU", "tanh": "CPU"}


def counting_plugin(plugin_name: str, plugin_release: str = "1", plugin_chip: str = "a") -> type:
    """Return a plugin with the given name, version and fingerprint."""

    class Plugin(CountingPlugin):
        name = plugin_name
        release = plugin_release
        chip = plugin_chip

    return Plugin


def core_with(*plugins: type) -> hetero.Core:
    return hetero.Core("inprocess", plugins=plugins)


@pytest.fixture(scope="module")
def blob():
    with (
        core_with(counting_plugin("FIRST"), counting_plugin("SECOND")) as core,
        core.compile_model(
            branches(), "HETERO:FIRST,SECOND", affinity={"op:Neg": "SECOND", "tanh": "SECOND"}
        ) as compiled,
    ):
        yield compiled.export_model()


def test_unchanged_environment_runs_the_blob_as_it_is(blob):
    with core_with(counting_plugin("FIRST"), counting_plugin("SECOND")) as core:
        check = core.check(blob)
    assert (check.verdict, check.recompiled) == ("runs", ())
    assert {stage.target for stage in check.stages} == {"FIRST", "SECOND"}
    assert "runs as it is on FIRST, SECOND" in str(check)


def test_other_driver_recompiles_the_stages_of_its_device(blob):
    with core_with(counting_plugin("FIRST"), counting_plugin("SECOND", "2")) as core:
        check = core.check(blob)
    assert check.verdict == "recompiles"
    assert {stage.device for stage in check.recompiled} == {"SECOND"}
    assert all("exported by SECOND" in stage.reason for stage in check.recompiled)


def test_missing_device_refuses_the_blob_with_the_fix(blob):
    with core_with(counting_plugin("FIRST")) as core:
        check = core.check(blob)
        assert check.verdict == "refused"
        assert "not available: SECOND" in check.refusal
        assert "remap" in check.refusal
        assert core.check(blob, remap={"SECOND": "CPU"}).verdict == "recompiles"
        with pytest.raises(errors.UnknownDeviceError) as raised:
            core.import_model(blob)
        assert check.refusal == str(raised.value)


def test_compatibility_check_compares_the_runtime_requirements():
    with (
        core_with(counting_plugin("FIRST"), counting_plugin("SECOND")) as core,
        core.compile_model(branches(), "HETERO:FIRST,SECOND", affinity={"tanh": "SECOND"}) as both,
        core.compile_model(branches(), "FIRST") as single,
    ):
        split = {"RUNTIME_REQUIREMENTS": both.get_property("RUNTIME_REQUIREMENTS")}
        alone = {"RUNTIME_REQUIREMENTS": single.get_property("RUNTIME_REQUIREMENTS")}
        assert core.get_property("HETERO", "COMPATIBILITY_CHECK", split) == "SUPPORTED"
        assert core.get_property("FIRST", "COMPATIBILITY_CHECK", alone) == "SUPPORTED"
        assert core.get_property("SECOND", "COMPATIBILITY_CHECK", alone) == "NOT_APPLICABLE"
        assert core.get_property("HETERO", "COMPATIBILITY_CHECK") == "NOT_APPLICABLE"
    with core_with(counting_plugin("FIRST", "2"), counting_plugin("SECOND")) as core:
        assert core.get_property("HETERO", "COMPATIBILITY_CHECK", split) == "UNSUPPORTED"
        assert core.get_property("FIRST", "COMPATIBILITY_CHECK", alone) == "UNSUPPORTED"


def test_supported_properties_contain_the_compatibility_check_and_its_argument():
    names = {"RUNTIME_REQUIREMENTS", "COMPATIBILITY_CHECK"}
    with (
        core_with(counting_plugin("FIRST")) as core,
        core.compile_model(branches(), "HETERO:FIRST,CPU", affinity={"tanh": "CPU"}) as compiled,
    ):
        for device in ("HETERO", "FIRST", "CPU"):
            assert names <= set(core.get_property(device, "SUPPORTED_PROPERTIES")), device
            assert core.get_property(device, "RUNTIME_REQUIREMENTS") == ""
        assert names & set(compiled.get_property("SUPPORTED_PROPERTIES")) == {
            "RUNTIME_REQUIREMENTS"
        }
        with pytest.raises(errors.UnknownPropertyError, match=r"Core\.get_property"):
            compiled.get_property("COMPATIBILITY_CHECK")


def test_damaged_blob_is_refused_and_missing_file_raises(blob, tmp_path):
    with core_with() as core:
        assert core.check(b"not a blob").verdict == "refused"
        assert core.check(blob[:100]).verdict == "refused"
        with pytest.raises(errors.ModelNotFoundError):
            core.check(tmp_path / "missing.hetero")


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 200))]
)
def test_verdict_equals_the_import_in_a_changed_environment(blob, seed):
    """Versions, fingerprints, options, missing devices, remaps and device lists are drawn."""
    rng = random.Random(seed)
    plugins = [
        counting_plugin(name, rng.choice("112"), rng.choice("aab"))
        for name in ("FIRST", "SECOND", "THIRD")
        if rng.random() < 0.8
    ]
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        device_options = {p.name: {"COUNT_LEVEL": rng.choice([0, 1])} for p in plugins}
        options["config"] = {"DEVICE_PROPERTIES": device_options}
    if rng.random() < 0.4:
        options["remap"] = {rng.choice(["FIRST", "SECOND"]): rng.choice(["THIRD", "CPU", "FIRST"])}
    if rng.random() < 0.2:
        options["device_name"] = rng.choice(["HETERO:FIRST,CPU", "HETERO:SECOND,FIRST", "CPU"])
    with core_with(*plugins) as core:
        check = core.check(blob, **options)
        if check.refusal:
            with pytest.raises(HeteroError) as raised:
                core.import_model(blob, **options)
            assert str(raised.value) == check.refusal
            return
        with core.import_model(blob, **options) as imported:
            np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
            if "device_name" in options and not imported.deployment.imported:
                assert len(check.recompiled) == len(check.stages)
                return
            usable = {stage.index for stage in check.stages if not stage.reason}
            assert usable == imported.deployment.imported
            targets = {stage.index: stage.target for stage in check.stages}
            assert targets == {s.index: s.device for s in imported.subgraphs}


def test_command_prints_verdict_and_exits_1_if_refused(shell, blob, tmp_path):
    path = tmp_path / "m.hetero"
    with (
        hetero.Core("inprocess") as core,
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled,
    ):
        compiled.export_model(path)
    result = shell("check", path)
    assert (result.code, "runs as it is on" in result.out) == (0, True)
    document = json.loads(shell("check --json", path).out)
    assert document["verdict"] == "runs"
    assert {stage["reason"] for stage in document["stages"]} == {None}
    path.write_bytes(blob)
    result = shell("check", path)
    assert result.code == 1
    assert "not available: FIRST" in result.out
    assert shell("check", __file__).code == 2
