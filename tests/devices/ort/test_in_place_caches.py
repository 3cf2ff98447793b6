"""In-place KV caches, compared with a session that copies them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import hetero
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import Payload, RunContext
from hetero.devices.request.device_model import DeviceModel

pytest.importorskip("onnxruntime")

#: The module that the plugin uses, even after other tests replaced the package's attribute.
MODULE: Any = importlib.import_module("hetero.devices.ort.in_place_caches")
STATES = {"past_key": "present_key", "past_value": "present_value"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(MODULE, "_BLOCK", 4)


def attention() -> onnx.ModelProto:
    """Return GroupQueryAttention with 2 heads of size 8 and packed QKV."""
    return parser.parse_model("""<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
        attention (float[batch, new, 48] qkv, int32[batch] lengths, int32 total,
                   float[batch, 2, past, 8] past_key, float[batch, 2, past, 8] past_value)
        => (float[batch, new, 16] y, float[batch, 2, longer, 8] present_key,
            float[batch, 2, longer, 8] present_value) {
            y, present_key, present_value =
                com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(
                    qkv, "", "", past_key, past_value, lengths, total)
        }""")


def feeds(rng: np.random.Generator, past: int, count: int) -> dict[str, np.ndarray]:
    return {
        "qkv": rng.standard_normal((1, count, 48)).astype(np.float32),
        "lengths": np.array([past + count - 1], np.int32),
        "total": np.array(past + count, np.int32),
    }


@pytest.mark.parametrize("origin", ["compile", "import"])
def test_in_place_cache_equals_copies_of_a_session(origin, monkeypatch):
    capacities: list[int] = []

    def recording_buffers(*arguments: Any) -> Any:
        buffers = create_buffers(*arguments)
        capacities.append(buffers.capacity)
        return buffers

    create_buffers: Any = MODULE._Buffers
    monkeypatch.setattr(MODULE, "_Buffers", recording_buffers)
    peer = pytest.importorskip("onnxruntime").InferenceSession(attention().SerializeToString())
    caches = [np.zeros((1, 2, 0, 8), np.float32)] * 2
    rng = np.random.default_rng(3)
    with hetero.Core("inprocess", devices={"ORT": 1}) as core:
        compiled = core.compile_model(core.read_model(attention(), states=STATES), "ORT")
        if origin == "import":
            compiled = core.import_model(compiled.export_model())
        request, past = compiled.create_infer_request(), 0
        for count in (3, 1, 1, 1, 2, 1, 5, 1, 1):
            inputs = feeds(rng, past, count)
            want, *caches = peer.run(None, inputs | dict(zip(STATES, caches, strict=True)))
            np.testing.assert_allclose(request.infer(inputs)["y"], want, rtol=1e-5, atol=1e-6)
            past += count
            # Lineage counts these bytes; spare capacity must not count.
            (stage,) = request.times.stages
            assert stage.output_nbytes == want.nbytes + sum(cache.nbytes for cache in caches)
            states: Any = request.query_state()
            for state, cache in zip(states, caches, strict=True):
                np.testing.assert_allclose(state.state.data, cache, rtol=1e-6)
        assert capacities == [4, 8, 12, 16]


def program() -> Any:
    from hetero.devices.ort.plugin import ORTPlugin

    return ORTPlugin().compile_model(read_model(attention()), {})


def step(
    compiled: DeviceModel, caches: list[Any], past: int, seed: int, *, on_device: bool = True
) -> list[Any]:
    inputs = feeds(np.random.default_rng(seed), past, 1)
    context = RunContext(resident_outputs=frozenset({1, 2} if on_device else ()))
    return list(compiled.run([*inputs.values(), *caches], context))


def test_two_runs_from_one_cache_stay_separate():
    compiled = program()
    initial = [np.random.default_rng(i).standard_normal((1, 2, 4, 8)).astype("f") for i in (1, 2)]
    _, *caches = step(compiled, initial, 4, seed=0)
    _, *one = step(compiled, caches, 5, seed=1)
    before = one[0].to_host()
    _, *two = step(compiled, caches, 5, seed=2)
    assert one[0].buffers is caches[0].buffers is not two[0].buffers
    assert np.array_equal(one[0].to_host(), before)
    assert not np.array_equal(two[0].to_host()[:, :, 5], before[:, :, 5])
    assert np.array_equal(two[0].to_host()[:, :, :5], before[:, :, :5])
    y = step(compiled, one, 6, seed=3)[0]
    np.testing.assert_allclose(
        y, step(compiled, [c.to_host() for c in one], 6, seed=3, on_device=False)[0], rtol=1e-6
    )


def test_repeated_steps_log_nothing(capfd):
    compiled = program()
    caches: list[Any] = [np.ones((1, 2, 3, 8), np.float32)] * 2
    for past in range(3, 7):
        _, *caches = step(compiled, caches, past, seed=0)
    assert capfd.readouterr().err == ""


def test_cache_requested_on_the_host_is_an_array():
    compiled = program()
    initial = [np.ones((1, 2, 3, 8), np.float32)] * 2
    assert all(
        type(value) is np.ndarray for value in step(compiled, initial, 3, seed=0, on_device=False)
    )
    _, *caches = step(compiled, initial, 3, seed=0)
    assert [c.shape for c in caches] == [(1, 2, 4, 8)] * 2
    assert all(type(value) is np.ndarray for value in step(compiled, caches, 4, 1, on_device=False))
    assert isinstance(compiled.export_model(), Payload)


def test_swapped_or_foreign_caches_are_copied():
    compiled = program()
    initial = [np.random.default_rng(i).standard_normal((1, 2, 4, 8)).astype("f") for i in (1, 2)]
    _, *caches = step(compiled, initial, 4, seed=0)
    swapped = caches[::-1]
    want = step(compiled, [c.to_host() for c in swapped], 5, seed=1, on_device=False)
    y, *presents = step(compiled, swapped, 5, seed=1)
    assert presents[0].buffers is not caches[0].buffers
    np.testing.assert_allclose([y], [want[0]], rtol=1e-6)
    for cache, other in zip(presents, want[1:], strict=True):
        np.testing.assert_allclose(cache.to_host(), other, rtol=1e-6)
    other_program = program()
    _, *copies = step(other_program, presents, 6, seed=2)
    assert copies[0].buffers is not presents[0].buffers
    assert copies[0].shape == (1, 2, 7, 8)
