"""Blobs that were exported without the weights that the model file contains."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest

from hetero.devices.errors import BlobError
from tests.support import blob_mutations
from tests.support.models import branches

PINS = {"relu": "CPU"}
DEVICES = "HETERO:ORT,CPU"
X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
MODEL = blob_mutations.model()


@pytest.fixture(scope="module")
def compiled(core):
    with core.compile_model(MODEL, DEVICES, affinity=PINS) as compiled:
        yield compiled


@pytest.mark.parametrize("kind", [bytes, memoryview, str])
def test_weightless_blob_with_weights_equals_full_blob(core, compiled, kind, tmp_path):
    full, weightless = compiled.export_model(), compiled.export_model(weightless=True)
    assert len(weightless) <= len(full) - 2 * 128 * 128 * 4
    path = tmp_path / "less.hetero"
    compiled.export_model(path, weightless=True)
    assert path.read_bytes() == weightless
    onnx.save_model(MODEL, tmp_path / "model.onnx")
    source = str(path) if kind is str else kind(weightless)
    with core.import_model(source, weights=tmp_path / "model.onnx") as imported:
        assert imported.deployment.imported == {0, 1, 2}
        np.testing.assert_array_equal(imported(X)[0], compiled(X)[0])
        assert imported.export_model() == full


def test_missing_or_wrong_weights_are_rejected(core, compiled):
    weightless = compiled.export_model(weightless=True)
    with pytest.raises(BlobError, match=r"without weights; pass .*weights='model.onnx'"):
        core.import_model(weightless)
    with pytest.raises(BlobError, match=r"lacks 131072 bytes .*the model that was compiled"):
        core.import_model(weightless, weights=branches())


def test_weights_of_full_blob_are_ignored(core, compiled):
    full = compiled.export_model()
    with core.import_model(full, weights=branches()) as imported:
        np.testing.assert_array_equal(imported(X)[0], compiled(X)[0])


def test_damaged_weightless_blob_is_rejected_or_harmless(core, compiled):
    weightless, full = compiled.export_model(weightless=True), compiled.export_model()
    weights, rng = core.read_model(MODEL), random.Random(5)
    for i in range(40):
        mutated = bytearray(weightless)
        if i % 2:
            mutated[rng.randrange(8, len(weightless))] ^= 1 << rng.randrange(8)
        else:
            del mutated[rng.randrange(8, len(weightless)) :]
        try:
            with core.import_model(mutated, weights=weights) as imported:
                assert imported.export_model() == full
        except BlobError:
            continue


def test_commands_write_and_run_weightless_blob(shell, tmp_path):
    model, blob = tmp_path / "model.onnx", tmp_path / "less.hetero"
    onnx.save_model(MODEL, model)
    assert shell("compile --weightless", model, "-d", DEVICES, "-o", blob).code == 0
    assert blob.stat().st_size < 2 * 128 * 128 * 4 + 20_000
    assert shell("run", blob).code == 1
    assert "--weights model.onnx" in shell("run", blob).err
    assert shell("run --json", blob, "--weights", model).document["subgraphs"]
    assert shell("run", model, "--weights", model).code == 2
    assert shell("compile --weightless", model).code == 2


def test_inspect_shows_weightless_and_reports_damage(compiled, shell, tmp_path):
    compiled.export_model(tmp_path / "less.blob", weightless=True)
    compiled.export_model(tmp_path / "whole.blob")
    weightless = shell(f"inspect {tmp_path}/less.blob --json", ray=True).document
    full = shell(f"inspect {tmp_path}/whole.blob --json", ray=True).document
    assert (weightless["weightless"], full["weightless"]) == (True, False)
    assert weightless["stages"] == full["stages"]
    assert "in this file" in shell(f"inspect {tmp_path}/less.blob", ray=True).out
    data = bytearray((tmp_path / "whole.blob").read_bytes())
    data[-2000] ^= 1
    (tmp_path / "whole.blob").write_bytes(data)
    mutated = shell(f"inspect {tmp_path}/whole.blob", ray=True)
    assert mutated.code == 1
    assert "damaged: the checksum does not match" in mutated.err
    (tmp_path / "empty.blob").touch()
    assert (
        "is empty; expected an ONNX model" in shell(f"inspect {tmp_path}/empty.blob", ray=True).err
    )


@pytest.mark.parametrize(
    "device",
    ["ORT", "HETERO:ORT,CPU", *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU", "OV"))],
)
def test_weightless_blob_is_small_for_every_device(core, device):
    if device == "OV":
        pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    image = np.ones((1, 3, 224, 224), np.float32)
    with core.compile_model("light:squeezenet", device) as compiled:
        weightless = compiled.export_model(weightless=True)
        assert len(weightless) < 100_000
        with core.import_model(weightless, weights="light:squeezenet") as imported:
            np.testing.assert_allclose(imported(image)[0], compiled(image)[0], rtol=1e-4, atol=1e-7)
