"""A served model that is joined from several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import hetero
from hetero.apps.serve.model_folder import ModelOptions, folder_sources
from hetero.devices.errors import ModelNotFoundError

FIRST = '<ir_version: 8, opset_import: ["" : 17]> first (float[N] x) => (float[N] y) {y = Neg(x)}'
SECOND = '<ir_version: 8, opset_import: ["" : 17]> second (float[N] a) => (float[N] b) {b = Exp(a)}'


@pytest.fixture
def folder(tmp_path):
    pair = tmp_path / "models" / "pair"
    pair.mkdir(parents=True)
    for name, text in (("first", FIRST), ("second", SECOND)):
        onnx.save(onnx.parser.parse_model(text), pair / f"{name}.onnx")
    (pair / "hetero.yaml").write_text("join: [first.onnx, second.onnx]\nwires: {y: a}\n")
    return pair


def test_options_join_the_models_of_a_folder(folder):
    with hetero.Core("inprocess") as core:

        def load(path: Path, options: ModelOptions) -> Any:
            files = [path / name for name in options.join]
            return core.compile_model(core.read_model(files, wires=options.wires), "CPU")

        (source,) = folder_sources(folder.parent, ModelOptions(), load)
        x = np.array([0.5, 2], np.float32)
        np.testing.assert_allclose(source.load()({"x": x})["b"], np.exp(-x), rtol=1e-6)
        assert source.name == "pair"


def test_serve_command_loads_joined_models(shell, folder):
    result = shell("serve --check --json -d CPU", folder.parent)
    assert result.code == 0, result.err
    (row,) = result.document["models"]
    assert (row["name"], row["state"]) == ("pair", "READY")


@pytest.mark.parametrize("name", ["third.onnx", "../pair/first.onnx"])
def test_missing_file_is_named(folder, name):
    (folder / "hetero.yaml").write_text(f"join: [first.onnx, {name}]\nwires: {{y: a}}\n")
    (source,) = folder_sources(folder.parent, ModelOptions(), lambda *_: pytest.fail("loaded"))
    with pytest.raises(ModelNotFoundError, match=r"\(first.onnx, second.onnx\), got"):
        source.load()
