"""Importing blobs where a device is missing: pins, options and remaps still apply."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from hetero.devices import errors
from tests.support.core_fixtures import core_fixture
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def blob():
    """Return a blob for three devices: ORT by default, CPU and COUNT by one pin each."""
    config = {"DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": True}}, "MAX_REQUESTS_IN_FLIGHT": 7}
    pins = {"op:Neg": "CPU", "tanh": "COUNT"}
    with (
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.compile_model(branches(), "HETERO:ORT,CPU,COUNT", config, affinity=pins) as compiled,
    ):
        return compiled.export_model()


other_core = core_fixture("module", devices={"ORT": 2})


def test_pins_and_options_apply_to_available_devices(other_core, blob):
    with other_core.import_model(blob, "HETERO:ORT.0,CPU") as imported:
        assert imported.affinity["neg"] == "CPU"
        assert imported.affinity["tanh"] == "ORT.0"
        assert imported.request.configs["CPU"] == {"PERF_COUNT": True}
        assert imported.request.configs["ORT.0"] == {}
        assert imported.get_property("MAX_REQUESTS_IN_FLIGHT") == 7
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
        blob_of_import = imported.export_model()
    with other_core.import_model(blob_of_import, "HETERO:CPU,ORT.1") as reimported:
        assert reimported.affinity["neg"] == "CPU"


def test_import_options_override_blob_options(other_core, blob):
    config = {"MAX_REQUESTS_IN_FLIGHT": 3, "DEVICE_PROPERTIES": {"CPU": {"PERF_COUNT": False}}}
    with other_core.import_model(blob, "HETERO:ORT.0,CPU", config) as imported:
        assert imported.request.configs["CPU"] == {"PERF_COUNT": False}
        assert imported.get_property("MAX_REQUESTS_IN_FLIGHT") == 3


def test_remap_applies_when_another_device_is_missing(other_core, blob):
    with other_core.import_model(blob, "HETERO:ORT.0,ORT.1", remap={"CPU": "ORT.1"}) as imported:
        assert [n for n, d in imported.affinity.items() if d == "ORT.1"] == ["neg"]
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
    with pytest.raises(errors.UnknownDeviceError, match="NULL"):
        other_core.import_model(blob, "HETERO:ORT.0", remap={"CPU": "NULL"})


def test_import_of_missing_file_or_folder_is_rejected(other_core, tmp_path):
    with pytest.raises(errors.ModelNotFoundError, match=r"none\.hetero"):
        other_core.import_model(tmp_path / "none.hetero")
    with pytest.raises(errors.BlobError, match="not a regular file"):
        other_core.import_model(tmp_path)


def test_wrong_argument_types_are_rejected(other_core, blob):
    with pytest.raises(errors.ArgumentTypeError, match="got int"):
        other_core.import_model(3)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentTypeError, match="got 'CPU=ORT'"):
        other_core.import_model(blob, remap="CPU=ORT")  # type: ignore[arg-type]
    with (
        other_core.import_model(blob, "ORT") as imported,
        pytest.raises(errors.ArgumentTypeError, match="got int"),
    ):
        imported.export_model(3)  # type: ignore[call-overload]


def test_remap_to_missing_device_suggests_a_fix(other_core, blob):
    with pytest.raises(
        errors.UnknownDeviceError, match=r"not available: GPU.*--remap CPU="
    ) as error:
        other_core.import_model(blob, remap={"CPU": "GPU"})
    assert error.value.data["devices"] == ("GPU",)
