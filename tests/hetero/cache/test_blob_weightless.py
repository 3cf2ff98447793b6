"""Blobs that were exported without the weights that the model's own file has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import BlobError
from tests.support import blob_mutations
from tests.support.command_line import Shell
from tests.support.models import branches

PINS = {"relu": "CPU"}
DEVICES = "HETERO:ORT,CPU"
X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
MODEL = blob_mutations.model()


@pytest.fixture(scope="module")
def compiled(core: hetero.Core) -> Iterator[hetero.CompiledModel]:
    with core.compile_model(MODEL, DEVICES, affinity=PINS) as compiled:
        yield compiled


@pytest.mark.parametrize("kind", [bytes, memoryview, str])
def test_with_the_models_weights_it_is_the_whole_one_again(
    core: hetero.Core, compiled: hetero.CompiledModel, kind: Callable[..., Any], tmp_path: Path
) -> None:
    whole, less = compiled.export_model(), compiled.export_model(weightless=True)
    assert len(less) <= len(whole) - 2 * 128 * 128 * 4
    path = tmp_path / "less.hetero"
    compiled.export_model(path, weightless=True)
    assert path.read_bytes() == less
    onnx.save_model(MODEL, tmp_path / "model.onnx")
    source = str(path) if kind is str else kind(less)
    with core.import_model(source, weights=tmp_path / "model.onnx") as again:
        assert again.deployment.imported == {0, 1, 2}
        np.testing.assert_array_equal(again(X)[0], compiled(X)[0])
        assert again.export_model() == whole


def test_without_them_or_with_others_it_says_so(
    core: hetero.Core, compiled: hetero.CompiledModel
) -> None:
    less = compiled.export_model(weightless=True)
    with pytest.raises(BlobError, match=r"without weights; give .*weights='model.onnx'"):
        core.import_model(less)
    with pytest.raises(BlobError, match=r"lacks 131072 bytes .*the model that was compiled"):
        core.import_model(less, weights=branches())


def test_what_a_whole_blob_is_given_besides_changes_nothing(
    core: hetero.Core, compiled: hetero.CompiledModel
) -> None:
    whole = compiled.export_model()
    with core.import_model(whole, weights=branches()) as again:
        np.testing.assert_array_equal(again(X)[0], compiled(X)[0])


def test_a_damaged_one_is_refused_or_is_the_whole_one(
    core: hetero.Core, compiled: hetero.CompiledModel
) -> None:
    less, whole = compiled.export_model(weightless=True), compiled.export_model()
    weights, chance = core.read_model(MODEL), random.Random(5)
    for i in range(40):
        damaged = bytearray(less)
        if i % 2:
            damaged[chance.randrange(8, len(less))] ^= 1 << chance.randrange(8)
        else:
            del damaged[chance.randrange(8, len(less)) :]
        try:
            with core.import_model(damaged, weights=weights) as again:
                assert again.export_model() == whole
        except BlobError:
            continue


def test_the_command_line_writes_and_runs_one(shell: Shell, tmp_path: Path) -> None:
    model, blob = tmp_path / "model.onnx", tmp_path / "less.hetero"
    onnx.save_model(MODEL, model)
    assert shell("compile --weightless", model, "-d", DEVICES, "-o", blob).code == 0
    assert blob.stat().st_size < 2 * 128 * 128 * 4 + 20_000
    assert shell("run", blob).code == 1
    assert "--weights model.onnx" in shell("run", blob).err
    assert shell("run --json", blob, "--weights", model).document["subgraphs"]
    assert shell("run", model, "--weights", model).code == 2
    assert shell("compile --weightless", model).code == 2


def test_inspect_shows_it_and_finds_damage(
    compiled: hetero.CompiledModel, shell: Shell, tmp_path: Path
) -> None:
    compiled.export_model(tmp_path / "less.blob", weightless=True)
    compiled.export_model(tmp_path / "whole.blob")
    less = shell(f"inspect {tmp_path}/less.blob --json", ray=True).document
    whole = shell(f"inspect {tmp_path}/whole.blob --json", ray=True).document
    assert (less["weightless"], whole["weightless"]) == (True, False)
    assert less["stages"] == whole["stages"]
    assert "of it here" in shell(f"inspect {tmp_path}/less.blob", ray=True).out
    data = bytearray((tmp_path / "whole.blob").read_bytes())
    data[-2000] ^= 1
    (tmp_path / "whole.blob").write_bytes(data)
    damaged = shell(f"inspect {tmp_path}/whole.blob", ray=True)
    assert damaged.code == 1
    assert "damaged: the checksum does not match" in damaged.err
    (tmp_path / "empty.blob").touch()
    assert "is empty: not an ONNX model" in shell(f"inspect {tmp_path}/empty.blob", ray=True).err


@pytest.mark.parametrize(
    "device",
    ["ORT", "HETERO:ORT,CPU", *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU", "OV"))],
)
def test_it_is_small_whatever_form_the_device_gives_weights(core: hetero.Core, device: str) -> None:
    if device == "OV":
        pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    image = np.ones((1, 3, 224, 224), np.float32)
    with core.compile_model("light:squeezenet", device) as compiled:
        less = compiled.export_model(weightless=True)
        assert len(less) < 100_000
        with core.import_model(less, weights="light:squeezenet") as again:
            np.testing.assert_allclose(again(image)[0], compiled(image)[0], rtol=1e-4, atol=1e-7)
