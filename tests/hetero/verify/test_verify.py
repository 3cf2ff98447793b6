"""Verification of a vendor's results through `Core.compile_model`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import hetero
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import Value
from hetero.scheduler.types.isolation import RunFailure, RunResult
from hetero.verify.part_check import PartCheck, PartDraw
from hetero.verify.verdict import refusals_of
from tests.hetero.verify.faulty_vendor import (
    FAILURES,
    FAULTS,
    AgreeingVendor,
    FaultyVendor,
    SecondVendor,
    small,
)
from tests.hetero.verify.wrong_kernels import KERNELS, WrongVendor
from tests.support.core_fixtures import core_fixture
from tests.support.stateful_decoders import grouped

#: Fault -> the nodes at fault; by default those that have the fault's operator.
NODES: dict[str, list[set[str]]] = {
    "gather_then_conv": [{"permute", "mixed"}],
    "mul_then_add_drops_sign": [{"scaled", "moved"}],
    "relu_after_normalization": [{"normal", "positive"}],
    "matmul_of_batches": [{"batches"}],
    "div_rounds": [{"halves"}],
    "cast_of_doubles": [{"narrow"}],
    "conv_shifted": [{"conv"}, {"mixed"}],
    "conv_pads": [{"conv"}],
    "gather_negative": [{"permute"}],
}


def net() -> onnx.ModelProto:
    """Return a net with many operators over a dynamic batch."""
    rng = np.random.default_rng(3)
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4, 8, 8] x, int32[N, 6] ids, double[N, 6] wide)
            => (float[N, M] y, int64[N, 1] best, int32[N, 6] whole, float[N, 6] single) {
            [conv] a = Conv<pads = [1, 1, 1, 1]>(x, w_conv, b_conv)
            [normal] b = BatchNormalization(a, scale, shift, mean, variance)
            [positive] c = Relu(b)
            [most] d = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]>(c)
            [average] e =
                AveragePool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]>(c)
            [both] f = Concat<axis = 1>(d, e)
            [permute] g = Gather<axis = 1>(f, order)
            [mixed] h = Conv(g, w_mixed)
            [last] i = Transpose<perm = [0, 2, 3, 1]>(h)
            [part] j = Slice(i, starts, ends, axes_1)
            [scaled] k = Mul(j, factor)
            [moved] l = Add(k, offset)
            [folded] m = Tanh(l)
            [rows] n = Flatten(m)
            [dense] o = Gemm<transB = 1>(n, w_dense, b_dense)
            [middle] p = ReduceMean<axes = [1], keepdims = 1>(o)
            [centred] q = Sub(o, p)
            [bounded] r = Clip(q, low, high)
            [grown] s = Exp(r)
            [shares] t = Softmax<axis = -1>(s)
            [column] u = Unsqueeze(t, axes_1)
            [batches] v = MatMul(u, w_rows)
            [summed] w0 = ReduceSum<keepdims = 0>(v, axes_1)
            [running] w1 = CumSum(w0, axis)
            [is_less] w2 = Less(w1, w0)
            [chosen] y = Where(w2, w0, w1)
            [top] best = ArgMax<axis = 1>(y)
            [halves] z0 = Div(ids, two)
            [rest] whole = Mod(z0, three)
            [narrow] single = Cast<to = 1>(wide)
        }"""
    )
    for node in model.graph.node:
        if not node.domain:
            node.ClearField("domain")
    weights = {
        "w_conv": rng.standard_normal((5, 4, 3, 3)) / 4,
        "b_conv": rng.standard_normal(5),
        "scale": rng.random(5) + 0.5,
        "shift": rng.standard_normal(5),
        "mean": rng.standard_normal(5) / 4,
        "variance": rng.random(5) + 0.1,
        "w_mixed": rng.standard_normal((6, 10, 1, 1)) / 3,
        "factor": np.array(-0.75),
        "offset": np.array(0.25),
        "w_dense": rng.standard_normal((60, 60)) / 4,
        "b_dense": rng.standard_normal(60),
        "low": np.array(-2.0),
        "high": np.array(2.0),
        "w_rows": rng.standard_normal((60, 7)),
    }
    integers = {
        "order": np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 0]),
        "starts": np.array([0]),
        "ends": np.array([2]),
        "axes_1": np.array([1]),
        "axis": np.array(1),
    }
    whole = {"two": np.array(2, np.int32), "three": np.array(3, np.int32)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, dtype), name)
        for arrays, dtype in ((weights, np.float32), (integers, np.int64), (whole, np.int32))
        for name, array in arrays.items()
    )
    return model


def request() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {
        "x": rng.standard_normal((3, 4, 8, 8)).astype(np.float32),
        "ids": rng.integers(-9, 9, (3, 6)).astype(np.int32),
        "wide": rng.standard_normal((3, 6)),
    }


core = core_fixture("module", plugins=[FaultyVendor, SecondVendor, AgreeingVendor, WrongVendor])


#: A Core without verdicts of other tests, which may have had no third device.
new_core = core_fixture(plugins=[FaultyVendor, SecondVendor, AgreeingVendor])


@pytest.fixture(scope="module")
def right():
    session = onnxruntime.InferenceSession(
        net().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, request()))


def wrong_nodes(compiled: hetero.CompiledModel) -> list[set[str]]:
    """Return the nodes of each piece of evidence."""
    return [
        set(evidence.nodes)
        for verdict in compiled.verification.verdicts
        for evidence in verdict.evidence
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernel_is_refused_and_the_result_is_right(core, right, fault):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": fault}
    with core.compile_model(net(), "HETERO:VENDOR,CPU", config) as compiled:
        refused_nodes = wrong_nodes(compiled)
        expected = NODES.get(fault) or [{n} for n in nodes_of(FAULTS[fault].op_type)]
        assert sorted(map(sorted, refused_nodes)) == sorted(map(sorted, expected))
        assert {compiled.affinity[node] for nodes in refused_nodes for node in nodes} == {"CPU"}
        assert "VENDOR" in compiled.affinity.values()
        result = compiled(request())
        for name, value in zip(("y", "best", "whole", "single"), right, strict=True):
            np.testing.assert_allclose(result[name], value, rtol=1e-3, atol=1e-5)


def nodes_of(op_type: str) -> list[str]:
    return [node.name for node in net().graph.node if node.op_type == op_type]


#: Limit that no check reaches on a busy machine, in seconds.
PATIENCE_S = 120.0
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_wrong_for_some_values_is_refused(core, kernel):
    wrong = KERNELS[kernel]
    model = wrong.model()
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "KERNEL": kernel}
    with core.compile_model(model, "HETERO:WRONG,CPU", config) as compiled:
        (refusal,) = [v for v in compiled.verification.verdicts if v.status == "refused"]
        assert wrong.op_type in refusal.evidence[0].op_types
        affinity = dict(compiled.affinity)
        assert {affinity[n] for e in refusal.evidence for n in e.nodes} == {"CPU"}
    with core.compile_model(model, "HETERO:WRONG,CPU", {**config, "KERNEL": ""}) as compiled:
        assert {v.status for v in compiled.verification.verdicts} == {"agrees"}


def test_right_device_agrees(core):
    with core.compile_model(
        net(), "HETERO:VENDOR,CPU", {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    ) as compiled:
        assert [verdict.status for verdict in compiled.verification.verdicts] == ["agrees"]
        assert set(compiled.affinity.values()) == {"VENDOR"}


def test_nothing_is_verified_by_request(core):
    config = {"VERIFY": "NO", "FAULT": "tanh_nan"}
    with core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled:
        assert compiled.verification.verdicts == ()
        assert np.isnan(compiled(X)["y"]).any() == bool((np.tanh(np.maximum(X, 0)) < 0).any())
        assert compiled.affinity["middle"] == "VENDOR"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAILURES)
def test_run_that_fails_is_refused(core, fault):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": fault}
    with core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled:
        assert wrong_nodes(compiled) == [{"middle"}]
        codes = {r.code for v in compiled.verification.verdicts for r in refusals_of(v).values()}
        assert codes == {"crash" if fault.startswith("crash") else "wrong_result"}
        assert dict(compiled.affinity) == {"first": "VENDOR", "middle": "CPU", "last": "VENDOR"}
        np.testing.assert_allclose(compiled(X)["y"], -np.tanh(np.maximum(X, 0)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "pins"), [("VENDOR", None), ("HETERO:VENDOR,CPU", {"middle": "VENDOR"})]
)
def test_node_that_ends_the_process_never_runs(core, device, pins):
    """Other wrong nodes without an alternative stay, with a warning."""
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": "crash_of_fifth_run"}
    with pytest.raises(hetero.VerificationError, match="SIGSEGV") as caught:
        core.compile_model(small(), device, config, affinity=pins)
    assert (caught.value.device, caught.value.nodes) == ("VENDOR", ("middle",))


@pytest.mark.slow
def test_strict_verification_raises_with_the_nodes(core):
    config = {"VERIFY": "STRICT", "FAULT": "softmax_axis"}
    core.compile_model(
        net(), "HETERO:VENDOR,CPU", {**config, "VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    ).close()
    with pytest.raises(hetero.VerificationError, match="VENDOR is wrong at Softmax") as caught:
        core.compile_model(net(), "HETERO:VENDOR,CPU", config)
    assert (caught.value.device, caught.value.nodes) == ("VENDOR", ("shares",))
    with core.compile_model(net(), "HETERO:VENDOR,CPU", {"VERIFY": "STRICT"}) as compiled:
        assert set(compiled.affinity.values()) == {"VENDOR"}


@pytest.mark.parametrize(
    ("device", "pins"), [("VENDOR", None), ("HETERO:VENDOR,CPU", {"shares": "VENDOR"})]
)
def test_wrong_node_without_alternative_stays_with_warning(
    core,
    caplog,
    device,
    pins,
):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": "softmax_one_short"}
    with (
        caplog.at_level(logging.WARNING, "hetero"),
        core.compile_model(net(), device, config, affinity=pins) as compiled,
    ):
        assert [verdict.status for verdict in compiled.verification.verdicts] == ["kept"]
        assert compiled.affinity["shares"] == "VENDOR"
    warnings = [r.getMessage() for r in caplog.records if "verification" in r.getMessage()]
    assert len(warnings) == 1
    assert "Softmax 'shares'" in warnings[0]
    with pytest.raises(hetero.VerificationError):
        core.compile_model(net(), device, {**config, "VERIFY": "STRICT"}, affinity=pins)


def test_third_device_confirms_the_reference(new_core):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": "gemm_without_bias"}
    with new_core.compile_model(net(), "HETERO:VENDOR,SECOND,CPU", config) as compiled:
        refusals = [v for v in compiled.verification.verdicts if v.status == "refused"]
        assert [v.evidence[0].witness for v in refusals] == ["SECOND agrees with the reference"]
        assert compiled.affinity["dense"] == "SECOND"


@pytest.mark.parametrize("fault", ["softmax_one_short", "sub_swapped"])
def test_third_device_confirms_the_vendor(new_core, caplog, fault):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": fault}
    with (
        caplog.at_level(logging.WARNING, "hetero"),
        new_core.compile_model(net(), "HETERO:VENDOR,AGREEING,CPU", config) as compiled,
    ):
        (verdict,) = compiled.verification.verdicts
        assert (verdict.status, verdict.device) == ("disputed", "VENDOR")
        (evidence,) = verdict.evidence
        assert evidence.witness == "AGREEING agrees with it"
        assert evidence.difference is not None
        assert set(compiled.affinity.values()) == {"VENDOR"}
    assert "the reference is outvoted" in caplog.text


def test_verdicts_are_known_after_the_first_compilation(tmp_path, monkeypatch):
    config = {
        "VERIFY": "YES",
        "VERIFY_SECONDS": PATIENCE_S,
        "FAULT": "sub_swapped",
        "CACHE_DIR": str(tmp_path),
    }
    with hetero.Core("inprocess", plugins=[FaultyVendor]) as first:
        first.compile_model(net(), "HETERO:VENDOR,CPU", config).close()
    monkeypatch.setattr("hetero.verify.part_check.PartCheck.run", None)  # nothing runs again
    with hetero.Core("inprocess", plugins=[FaultyVendor]) as second:
        with second.compile_model(net(), "HETERO:VENDOR,CPU", config) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE")
            assert compiled.affinity["centred"] == "CPU"
            statuses = [verdict.status for verdict in compiled.verification.verdicts]
            assert sorted(statuses) == ["agrees", "agrees", "refused"]
        # Another plan of the same model uses the same verdicts.
        for file in tmp_path.glob("*.hetero"):
            file.unlink()
        with second.compile_model(net(), "HETERO:VENDOR,CPU", config) as compiled:
            assert not compiled.get_property("LOADED_FROM_CACHE")
            assert compiled.affinity["centred"] == "CPU"
        survey = second.survey_model(net(), "HETERO:VENDOR,CPU", config)
        assert survey.affinity["centred"] == "CPU"
        refusal = survey.results["VENDOR"].refusals["centred"]["VENDOR"]
        assert refusal.code == "wrong_result"
        assert "VENDOR is wrong at Sub 'centred'" in refusal.message
        assert "1 wrong node" in survey.verification["VENDOR"]
        report = hetero.report.build_report(survey)
        row = next(d for d in report["devices"] if d["name"] == "VENDOR")
        assert row["verification"] == survey.verification["VENDOR"]


def test_imported_model_is_verified_only_if_its_verdicts_are_known(core):
    compiled = core.compile_model(
        small(), "HETERO:VENDOR,CPU", {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    )
    blob = compiled.export_model()
    assert [v.status for v in core.import_model(blob).verification.verdicts] == ["agrees"]
    with hetero.Core("inprocess", plugins=[FaultyVendor]) as other:
        (verdict,) = other.import_model(blob).verification.verdicts
        assert (verdict.status, verdict.node_names) == ("not verified", ("first", "middle", "last"))
        assert "imported" in verdict.reason
        assert other.import_model(blob, config={"VERIFY": "NO"}).verification.verdicts == ()


def test_random_operators_are_not_verified(core):
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        noisy (float[N, 3] x) => (float[N, 3] y) {
            [noise] a = RandomNormalLike(x)
            [sum] y = Add(x, a)
        }"""
    )
    with core.compile_model(
        model, "HETERO:VENDOR,CPU", {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    ) as compiled:
        (verdict,) = compiled.verification.verdicts
        assert verdict.status == "not verified"
        assert verdict.reason == "RandomNormalLike 'noise' draws random numbers"


def test_noise_of_a_rounding_part_is_measured_in_several_runs():
    """A value next to a tie changes in some runs with noise only."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            steps (float[4] x) => (float[4] y) { y = Round(x) }"""
        )
    )
    x = np.full(4, 0.5, np.float32)
    expected, other = np.zeros(4, np.float32), np.ones(4, np.float32)

    def shaken(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [{"y": other if number == 5 else expected} for number in range(len(inputs))]

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        raise AssertionError("the outputs are known")

    check = PartCheck(model, [PartDraw("typical", {"x": x})], run, shaken, run, 2.0**-23)
    assert check.is_noise({"x": x}, {"y": expected}, {"y": other})
    assert not check.is_noise({"x": x}, {"y": expected}, {"y": other + np.float32(99)})


@pytest.mark.parametrize("is_further", [True, False])
def test_failures_count_unless_first_draws_run(is_further):
    """A batch of one hides that others fail."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            one (float[N] x) => (float[N] y) { y = Abs(x) }"""
        )
    )

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [{"x": row["x"], "y": row["x"]} for row in inputs]

    def vendor(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        failure = RunFailure("error", "more than one row")
        return [failure if row["x"].size > 1 else {"y": row["x"]} for row in inputs]

    draws = [
        PartDraw("typical", {"x": np.ones(3, np.float32)}),
        PartDraw("wide", {"x": np.ones(1, np.float32)}, is_further=is_further),
    ]
    check = PartCheck(model, draws, run, run, vendor, 2.0**-23)
    assert [e.error for e in check.run().evidence] == ["more than one row"] * is_further


def test_failure_of_the_first_runs_only_has_evidence():
    """The vendor is wrong in its first two runs; the nodes are right when they run alone."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            two (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }"""
        )
    )
    x = np.ones(4, np.float32)
    values = {"x": x, "a": x, "y": -x}
    num_runs = 0

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [{port.name: values[port.name] for port in part.outputs} for _ in inputs]

    def vendor(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        nonlocal num_runs
        num_runs += 1
        wrong = np.float32(num_runs <= 2)
        return [{name: value + wrong for name, value in row.items()} for row in run(part, inputs)]

    check = PartCheck(model, [PartDraw("typical", {"x": x})], run, run, vendor, 2.0**-23)
    (evidence,) = check.run().evidence
    assert evidence.difference is not None
    assert evidence.difference.name == "y"
    assert evidence.difference.values == (-1.0, 0.0)


def test_difference_that_another_run_with_noise_explains_is_no_fault():
    """Noise of the first run of the whole part changes nothing; in the search it changes y."""
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            two (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }"""
        )
    )
    x = np.ones(4, np.float32)
    values = {"x": x, "a": x, "y": -x}

    def run(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [{port.name: values[port.name] for port in part.outputs} for _ in inputs]

    def shaken(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        is_search = len(part.outputs) > 1
        return [{**row, "y": row["y"] + np.float32(is_search)} for row in run(part, inputs)]

    def vendor(part: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        return [
            {name: value + (name == "y") for name, value in row.items()}
            for row in run(part, inputs)
        ]

    check = PartCheck(model, [PartDraw("typical", {"x": x})], run, shaken, vendor, 2.0**-23)
    result = check.run()
    assert not result.evidence
    assert result.not_verified == "rounding noise changes the results as much"


def test_number_of_iterations_is_small(core):
    """A loop of as many iterations as the largest integer would exhaust the bounds of the check."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        counted (int64 n, float[N] x) => (float[N] y) {
            one = Constant<value_int = 1>()
            [doubled] d = Add(n, one)
            [begins] c = Greater(one, n)
            [begun] b = Not(c)
            [loop] y = Loop(d, b, x) <body = body (int64 i, bool goes, float[N] v)
                => (bool goes_on, float[N] w) { goes_on = Identity(goes) w = Add(v, v) }>
        }"""
    )
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    with core.compile_model(model, "HETERO:VENDOR,CPU", config) as compiled:
        assert [verdict.status for verdict in compiled.verification.verdicts] == ["agrees"]


def test_images_are_as_large_as_the_windows(core):
    """The result of a window larger than its data is undefined, and shows no fault."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        image (float[?, 3, ?, ?] x) => (float[a, b, c, d] y) {
            y = MaxPool<kernel_shape = [20, 20], strides = [20, 20]>(x)
        }"""
    )
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": "max_pool_one_percent"}
    with core.compile_model(model, "HETERO:VENDOR,CPU", config) as compiled:
        assert [verdict.status for verdict in compiled.verification.verdicts] == ["refused"]


def test_model_beyond_the_bound_is_not_verified(core):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": 1e-9}
    with core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled:
        (verdict,) = compiled.verification.verdicts
        assert verdict.status == "not verified"
        assert "VERIFY_SECONDS" in verdict.reason


@pytest.mark.slow
def test_wrong_kernel_is_refused_on_ray(local_ray):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "FAULT": "tanh_nan"}
    plugin = f"{FaultyVendor.__module__}:{FaultyVendor.__qualname__}"
    with (
        hetero.Core(plugins=[plugin]) as core,
        core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled,
    ):
        assert wrong_nodes(compiled) == [{"middle"}]
        assert compiled.affinity["middle"] == "CPU"
        np.testing.assert_allclose(compiled(X)["y"], -np.tanh(np.maximum(X, 0)), rtol=1e-6)


def test_cache_lists_and_checks_verdicts(core, tmp_path, shell):
    config = {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S, "CACHE_DIR": str(tmp_path)}
    # Verdicts that are known from a compilation without a cache are written as well.
    core.compile_model(
        small(), "HETERO:VENDOR,CPU", {"VERIFY": "YES", "VERIFY_SECONDS": PATIENCE_S}
    ).close()
    core.compile_model(small(), "HETERO:VENDOR,CPU", config).close()
    listing = shell(f"cache list --dir {tmp_path} --json", ray=True).document
    assert {row["kind"] for row in listing["entries"]} == {"plan", "stage", "verdicts"}
    assert shell(f"cache verify --dir {tmp_path}", ray=True).code == 0


@pytest.mark.slow  # the reference tries many sizes
def test_decoder_with_grouped_attention_is_verified(core):
    """A mask of drawn integers would be invalid, or leave results undefined."""
    with core.compile_model(grouped(), "HETERO:ORT,CPU", {"VERIFY": "YES"}) as compiled:
        verdicts = compiled.verification.verdicts
    assert [(verdict.status, verdict.reason) for verdict in verdicts] == [("agrees", "")]
