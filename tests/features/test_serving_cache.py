"""``hetero serve --check`` with a cache that other commands filled."""

from __future__ import annotations

import onnx
import pytest

from tests.support.models import branches

pytest.importorskip("uvicorn")

SPLIT = ("-d HETERO:ORT,CPU", "-a op:Tanh=CPU")


def test_server_loads_the_model_that_compile_cached(shell, tmp_path):
    model, folder = tmp_path / "branches.onnx", tmp_path / "cache"
    onnx.save_model(branches(), model)
    first = shell("compile --json", model, *SPLIT, "--cache", folder)
    assert first.document["loaded_from_cache"] is False
    for options, is_cached in ((("-d HETERO:ORT,CPU",), False), (SPLIT, True)):
        result = shell("serve --check --json", model, *options, "--cache", folder)
        [row] = result.document["models"]
        assert row["loaded_from_cache"] is is_cached
    assert 0 <= row["cache_saved_s"] < first.document["compile_s"]
