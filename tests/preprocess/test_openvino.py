"""Against OpenVINO's own PrePostProcessor: the same calls, ports and answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hetero
from tests.preprocess.cases import CASES, Case, camera, model, picture

openvino = pytest.importorskip("openvino", reason="the oracle is OpenVINO: pip install openvino")


class OpenVINO:
    """The names that a case takes, of OpenVINO."""

    def __init__(self) -> None:
        from openvino import preprocess

        self.Type, self.Layout = openvino.Type, openvino.Layout
        self.ColorFormat = preprocess.ColorFormat
        self.ResizeAlgorithm = preprocess.ResizeAlgorithm
        self.PaddingMode = preprocess.PaddingMode
        self.PrePostProcessor = preprocess.PrePostProcessor


def expected(case: Case) -> tuple[Any, Any]:
    """Return OpenVINO's model with the steps in it, and its compiled form."""
    names = OpenVINO()
    core = openvino.Core()
    source = core.read_model(model(case.takes).SerializeToString())
    ppp = names.PrePostProcessor(source)
    case.describe(ppp, names)
    built = ppp.build()
    return built, core.compile_model(built, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_ports_and_answers_are_openvinos(case: Case) -> None:
    theirs, compiled = expected(case)
    ppp = hetero.PrePostProcessor(model(case.takes))
    case.describe(ppp, hetero)
    ours = ppp.build()
    assert [port.name for port in ours.inputs] == [port.any_name for port in theirs.inputs]
    assert [port.shape for port in ours.inputs] == [tuple(port.shape) for port in theirs.inputs]
    inputs = case.inputs()
    want = compiled(inputs)[0]
    with hetero.Core("inprocess") as core:
        for device in ("CPU", "ORT"):
            got = core.compile_model(ours, device)(inputs)[0]
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=case.atol)
            # A sum that is rounded either way is rare: what is wrong is wrong in many places.
            assert np.mean(np.abs(got.astype(float) - want) > 0.01) < 0.02


def test_twenty_pictures_are_as_openvino_has_them_on_two_devices() -> None:
    case = next(case for case in CASES if case.describe is camera)
    _, compiled = expected(case)
    ppp = hetero.PrePostProcessor(model(case.takes))
    case.describe(ppp, hetero)
    built = ppp.build()
    before = [name for name in built.node_names if name != "model"]
    with hetero.Core("inprocess") as core:
        cut = core.compile_model(
            built, "HETERO:ORT,CPU", affinity=dict.fromkeys(before, "CPU") | {"model": "ORT"}
        )
        assert [s.device for s in cut.subgraphs] == ["CPU", "ORT"]
        for seed in range(20):
            x = picture((1, 13, 18, 3), seed=seed)
            np.testing.assert_allclose(cut(x)[0], compiled(x)[0], rtol=1e-4, atol=1e-4)
