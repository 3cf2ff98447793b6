"""Caches that ONNX Runtime lengthens where they are, against a session that copies them."""

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
from hetero.devices.request.compiled_model import CompiledModel

pytest.importorskip("onnxruntime")

#: As it was first imported, whatever tests of missing modules left on the package.
MODULE: Any = importlib.import_module("hetero.devices.ort.caches")
STATES = {"past_key": "present_key", "past_value": "present_value"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_BLOCK", 4)


def attention() -> onnx.ModelProto:
    """Return attention of 2 heads of 8 over queries, keys and values side by side."""
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


@pytest.mark.parametrize("way", ["compiled", "imported"])
def test_a_cache_grows_in_place_as_a_session_grows_copies(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*given: Any) -> Any:
        rooms = rooms_of(*given)
        made.append(rooms.most)
        return rooms

    rooms_of: Any = MODULE._Rooms
    monkeypatch.setattr(MODULE, "_Rooms", counted)
    peer = pytest.importorskip("onnxruntime").InferenceSession(attention().SerializeToString())
    caches = [np.zeros((1, 2, 0, 8), np.float32)] * 2
    rng = np.random.default_rng(3)
    with hetero.Core("inprocess", devices={"ORT": 1}) as core:
        compiled = core.compile_model(core.read_model(attention(), states=STATES), "ORT")
        if way == "imported":
            compiled = core.import_model(compiled.export_model())
        request, past = compiled.create_infer_request(), 0
        for count in (3, 1, 1, 1, 2, 1, 5, 1, 1):
            given = feeds(rng, past, count)
            want, *caches = peer.run(None, given | dict(zip(STATES, caches, strict=True)))
            np.testing.assert_allclose(request.infer(given)["y"], want, rtol=1e-5, atol=1e-6)
            past += count
            # Without the room behind caches: what is kept for a loss is counted by it.
            (stage,) = request.times.stages
            assert stage.output_nbytes == want.nbytes + sum(cache.nbytes for cache in caches)
            states: Any = request.query_state()
            for state, cache in zip(states, caches, strict=True):
                np.testing.assert_allclose(state.state.data, cache, rtol=1e-6)
        assert made == [4, 8, 12, 16]


def program() -> Any:
    from hetero.devices.ort.plugin import ORTPlugin

    return ORTPlugin().compile_model(read_model(attention()), {})


def step(
    compiled: CompiledModel, caches: list[Any], past: int, seed: int, *, stay: bool = True
) -> list[Any]:
    given = feeds(np.random.default_rng(seed), past, 1)
    context = RunContext(left=frozenset({1, 2} if stay else ()))
    return list(compiled.run([*given.values(), *caches], context))


def test_two_that_go_on_from_one_cache_do_not_write_over_each_other() -> None:
    compiled = program()
    begun = [np.random.default_rng(i).standard_normal((1, 2, 4, 8)).astype("f") for i in (1, 2)]
    _, *caches = step(compiled, begun, 4, seed=0)
    _, *one = step(compiled, caches, 5, seed=1)
    before = one[0].to_host()
    _, *two = step(compiled, caches, 5, seed=2)
    assert one[0].rooms is caches[0].rooms is not two[0].rooms
    assert np.array_equal(one[0].to_host(), before)
    assert not np.array_equal(two[0].to_host()[:, :, 5], before[:, :, 5])
    assert np.array_equal(two[0].to_host()[:, :, :5], before[:, :, :5])
    y = step(compiled, one, 6, seed=3)[0]
    np.testing.assert_allclose(
        y, step(compiled, [c.to_host() for c in one], 6, seed=3, stay=False)[0], rtol=1e-6
    )


def test_a_cache_that_is_wanted_outside_is_an_array() -> None:
    compiled = program()
    begun = [np.ones((1, 2, 3, 8), np.float32)] * 2
    assert all(type(value) is np.ndarray for value in step(compiled, begun, 3, seed=0, stay=False))
    _, *caches = step(compiled, begun, 3, seed=0)
    assert [c.shape for c in caches] == [(1, 2, 4, 8)] * 2
    assert all(type(value) is np.ndarray for value in step(compiled, caches, 4, 1, stay=False))
    assert isinstance(compiled.export_model(), Payload)


def test_caches_that_are_not_as_a_run_left_them_are_copied_or_left_to_the_session() -> None:
    compiled = program()
    begun = [np.random.default_rng(i).standard_normal((1, 2, 4, 8)).astype("f") for i in (1, 2)]
    _, *caches = step(compiled, begun, 4, seed=0)
    swapped = caches[::-1]
    want = step(compiled, [c.to_host() for c in swapped], 5, seed=1, stay=False)
    y, *made = step(compiled, swapped, 5, seed=1)
    assert made[0].rooms is not caches[0].rooms
    np.testing.assert_allclose([y], [want[0]], rtol=1e-6)
    for cache, other in zip(made, want[1:], strict=True):
        np.testing.assert_allclose(cache.to_host(), other, rtol=1e-6)
    of_another = program()
    _, *moved = step(of_another, made, 6, seed=2)
    assert moved[0].rooms is not made[0].rooms
    assert moved[0].shape == (1, 2, 7, 8)
