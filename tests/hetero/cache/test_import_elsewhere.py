"""Blobs imported where a device of theirs is missing: what the user asked for still holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero.devices import errors
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def blob() -> bytes:
    """Three devices: ORT has the most, CPU what the user pinned, COUNT one more pin."""
    config = {"DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": True}}, "MAX_REQUESTS_IN_FLIGHT": 7}
    pins = {"op:Neg": "CPU", "tanh": "COUNT"}
    with (
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.compile_model(branches(), "HETERO:ORT,CPU,COUNT", config, affinity=pins) as compiled,
    ):
        return compiled.export_model()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"ORT": 2}) as core:
        yield core


def test_pins_and_options_hold_for_the_devices_that_are_there(
    elsewhere: hetero.Core, blob: bytes
) -> None:
    with elsewhere.import_model(blob, "HETERO:ORT.0,CPU") as again:
        assert again.affinity["neg"] == "CPU"
        assert again.affinity["tanh"] == "ORT.0"
        assert again.request.configs["CPU"] == {"PERF_COUNT": True}
        assert again.request.configs["ORT.0"] == {}
        assert again.get_property("MAX_REQUESTS_IN_FLIGHT") == 7
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)
        twice = again.export_model()
    with elsewhere.import_model(twice, "HETERO:CPU,ORT.1") as third:
        assert third.affinity["neg"] == "CPU"


def test_what_is_given_wins_over_the_blob(elsewhere: hetero.Core, blob: bytes) -> None:
    given = {"MAX_REQUESTS_IN_FLIGHT": 3, "DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": False}}}
    with elsewhere.import_model(blob, "HETERO:ORT.0,CPU", given) as again:
        assert again.request.configs["CPU"] == {"PERF_COUNT": False}
        assert again.get_property("MAX_REQUESTS_IN_FLIGHT") == 3


def test_a_remap_holds_though_another_device_is_missing(
    elsewhere: hetero.Core, blob: bytes
) -> None:
    with elsewhere.import_model(blob, "HETERO:ORT.0,ORT.1", remap={"CPU": "ORT.1"}) as again:
        assert [n for n, d in again.affinity.items() if d == "ORT.1"] == ["neg"]
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)
    with pytest.raises(errors.UnknownDeviceError, match="NULL"):
        elsewhere.import_model(blob, "HETERO:ORT.0", remap={"CPU": "NULL"})


def test_a_path_that_is_not_there_is_a_typed_error(elsewhere: hetero.Core, tmp_path: Path) -> None:
    with pytest.raises(errors.ModelNotFoundError, match=r"none\.hetero"):
        elsewhere.import_model(tmp_path / "none.hetero")
    with pytest.raises(errors.BlobError, match="not a regular file"):
        elsewhere.import_model(tmp_path)


def test_what_is_no_blob_target_or_remap_is_told_by_its_type(
    elsewhere: hetero.Core, blob: bytes
) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="got int"):
        elsewhere.import_model(3)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match="remap='CPU=ORT'"):
        elsewhere.import_model(blob, remap="CPU=ORT")  # type: ignore[arg-type]
    with (
        elsewhere.import_model(blob, "ORT") as again,
        pytest.raises(errors.ArgumentTypeError, match="got int"),
    ):
        again.export_model(3)  # type: ignore[call-overload]


def test_the_fix_for_a_remap_to_a_missing_device_names_the_blobs_device(
    elsewhere: hetero.Core, blob: bytes
) -> None:
    with pytest.raises(errors.UnknownDeviceError, match=r"not here: GPU.*--remap CPU=") as caught:
        elsewhere.import_model(blob, remap={"CPU": "GPU"})
    assert caught.value.data["devices"] == ("GPU",)
