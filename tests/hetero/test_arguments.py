"""Arguments of public functions: names, types and limits."""

from __future__ import annotations

import contextlib
import inspect
import locale

import numpy as np
import pytest

import hetero
from hetero.devices import errors
from hetero.examples.third_party_plugin import DensePlugin
from tests.scheduler.plugins import TwinPlugin
from tests.support.core_fixtures import core_fixture
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output
from tests.support.pair_plugin import PairPlugin

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


core = core_fixture(plugins=[DensePlugin, PairPlugin, TwinPlugin, CountingPlugin])


@pytest.mark.parametrize(
    "call",
    [
        lambda core: core.compile_model(branches(), ["ORT", "CPU"]),
        lambda core: core.query_model(branches(), None),
        lambda core: core.compile_model(branches(), "CPU", "LATENCY"),
        lambda core: core.compile_model(branches(), "CPU", {"DEVICE_PROPERTIES": {"CPU": 3}}),
        lambda core: core.compile_model(branches(), "CPU", affinity=[("tanh", "CPU")]),
        lambda core: core.compile_model(branches(), "CPU", affinity=lambda node: "CPU"),
        lambda core: core.set_property(["CPU"], {"PERF_COUNT": True}),
        lambda core: hetero.Core(devices={"ORT": "two"}),
        lambda core: hetero.Core(devices={"ORT": -1}),
        lambda core: hetero.Core(devices=["ORT"]),
        lambda core: hetero.Core(plugins="my_module:MyPlugin"),
        lambda core: hetero.Core(plugins=3),
    ],
)
def test_arguments_of_other_types_raise(core, call):
    with pytest.raises(errors.ArgumentTypeError) as error:
        call(core)
    assert isinstance(error.value, TypeError)
    words = ("expected", "wanted", "give")
    assert any(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "method",
    [
        "compile_model",
        "query_model",
        "import_model",
        "set_property",
        "get_property",
        "get_versions",
        "plan_model",
        "profile_model",
        "survey_model",
    ],
)
def test_device_name_parameter_as_in_openvino(method):
    assert "device_name" in inspect.signature(getattr(hetero.Core, method)).parameters


def test_locale_with_decimal_comma_has_no_effect(core):
    original_locale = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"):
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            break
    else:
        pytest.skip("this machine has no locale with a decimal comma")
    try:
        config = {"PLAN_SECONDS": "0.5", "REQUEST_TIMEOUT_S": "7.25"}
        with core.compile_model(branches(), "HETERO:ORT,CPU", config) as compiled:
            blob = compiled.export_model()
            np.testing.assert_allclose(compiled(X)["y"], branches_output(X), rtol=1e-5)
        with core.import_model(blob) as imported:
            assert imported.get_property("REQUEST_TIMEOUT_S") == 7.25
            assert imported.get_property("PLAN_SECONDS") == 0.5
    finally:
        locale.setlocale(locale.LC_ALL, original_locale)


def test_core_configuration_file_raises():
    with pytest.raises(errors.ArgumentError, match=r"no configuration file.*set_property"):
        hetero.Core("x.xml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_REQUESTS_IN_FLIGHT", -1),
        ("MAX_BYTES_IN_FLIGHT", 0),
        ("MAX_REQUESTS_WAITING", -1),
        ("REQUEST_TIMEOUT_S", "soon"),
        ("REQUEST_TIMEOUT_S", float("inf")),
        ("MAX_REQUESTS_IN_FLIGHT", float("inf")),
    ],
)
def test_compile_model_limits_out_of_range_raise(core, name, value):
    with pytest.raises(errors.PropertyError, match=name):
        core.compile_model(branches(), "CPU", {name: value})


def test_excessive_streams_or_devices_raise(core):
    with pytest.raises(errors.PropertyError, match=r"NUM_STREAMS.*<= 1024"):
        core.compile_model(branches(), "CPU", {"NUM_STREAMS": 1_000_000})
    with pytest.raises(errors.ArgumentError, match="at most 1024"):
        hetero.Core(executor="inprocess", devices={"NULL": 100_000})
