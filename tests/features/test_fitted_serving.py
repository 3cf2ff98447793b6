"""``hetero serve --fit``: models within the devices' memory, and requests that wait for it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest

import hetero
from hetero.apps.generate.decoder_ports import Decoder, step_shapes
from hetero.apps.serve import generation
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.repository import ModelSource, Repository
from hetero.apps.serve.server import Server
from tests.support.decoders import CONTEXT, decoder, greedy
from tests.support.serving import Response, ask

pytest.importorskip("uvicorn")

PROMPT = [3, 14, 15]
LINE = "serve --check --json --decoder --fit --devices CPU=2 -d HETERO:CPU.0,CPU.1"


@pytest.fixture
def path(tmp_path):
    onnx.save(decoder(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_decoder_is_planned_for_its_context(shell, path):
    result = shell(LINE, path, "--memory", "CPU.0=1GB,CPU.1=1GB")
    assert [row["state"] for row in result.document["models"]] == ["READY"]
    # The plan is made for the longest KV cache, so no --shape is needed.
    source = hetero.read_decoder(path)
    decoder_ports = Decoder.of(source)
    assert step_shapes(source, decoder_ports)[decoder_ports.mask] == (1, CONTEXT)


def test_decoder_in_a_folder_is_planned_for_its_context(shell, path):
    line = LINE.replace(" --decoder", "")
    (path.parent / "text").mkdir()
    path = path.rename(path.parent / "text" / "model.onnx")
    options = {"decoder": True, "config": {"FIT_MEMORY": True}}
    (path.parent / "hetero.yaml").write_text(json.dumps(options))
    (row,) = shell(line, path.parent.parent).document["models"]
    assert (row["name"], row["state"]) == ("text", "READY")


def test_budget_that_is_too_small_is_the_reason(shell, path):
    result = shell(LINE, path, "--memory", "CPU.0=1MB,CPU.1=1MB")
    assert result.code == 1
    (row,) = result.document["models"]
    assert "does not fit CPU.0 (1 MB), CPU.1 (1 MB)" in row["reason"]


def test_open_sizes_are_the_reason(shell, path):
    (row,) = shell(LINE.replace(" --decoder", ""), path).document["models"]
    assert "open dimensions (input_ids: " in row["reason"]
    assert "PLAN_SHAPES" in row["reason"]


def test_completions_wait_for_the_memory(monkeypatch):
    monkeypatch.setattr(generation, "_THREADS", 2)  # fewer than the requests that wait
    source = hetero.read_decoder(decoder())
    config = {"MAX_SEQUENCES": 1, "PLAN_SHAPES": step_shapes(source, Decoder.of(source), 12)}
    with (
        hetero.Core("inprocess", devices={"CPU": 1}) as core,
        core.compile_model(source, "CPU", config) as compiled,
    ):
        repository = Repository(lambda: [ModelSource("text", "1", lambda: compiled)])
        repository.refresh()
        with Server(repository, ServerOptions(port=0)) as server, ThreadPoolExecutor(6) as pool:

            def complete(prompt: list[int]) -> Response:
                body = {"model": "text", "prompt": prompt, "temperature": 0, "max_tokens": 9}
                return ask(server, "/v1/completions", body)

            responses = [*pool.map(complete, [PROMPT] * 6)]
            too_long = complete([3] * 12)
    texts = [r.json["choices"][0]["token_ids"] for r in responses]
    assert texts == [greedy(PROMPT, 9)] * 6
    assert too_long.status == 400
    assert b"memory for the KV cache of 12 tokens" in too_long.body
