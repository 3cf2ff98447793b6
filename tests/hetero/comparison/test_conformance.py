"""Conformance checks of devices and device lists of a Core."""

from itertools import pairwise

import pytest

import hetero
from hetero.comparison.core_subject import CoreSubject
from hetero.devices.conformance.query_checks import ELEMENT_TYPES
from hetero.devices.conformance.samples import samples, typed_samples
from hetero.devices.testing import check_device, subject_checks
from tests.support.models import branches


@pytest.fixture(scope="module", params=["CPU.0", "HETERO:CPU.0,CPU.1", "HETERO:CPU.0,ORT"])
def subject(request):
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        yield CoreSubject(core, request.param)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("check", subject_checks(), ids=lambda check: check.__name__)
def test_inprocess_devices_pass_every_check(subject, check):
    check(subject)


def test_checked_models_are_split_between_neighbours():
    with hetero.Core("inprocess") as core:
        model = core.read_model(branches())
        compiled = CoreSubject(core, "HETERO:CPU,ORT").compile_model(model)
        device_of = {n: s.device for s in compiled.subgraphs for n in s.node_names}
        devices = [device_of[name] for name in model.node_names]
        assert all(one != other for one, other in pairwise(devices))


@pytest.mark.slow
def test_every_kind_of_tensor_crosses():
    specs = set()
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        subject = CoreSubject(core, "HETERO:CPU.0,CPU.1")
        for sample in (*samples(), *(s for name in ELEMENT_TYPES for s in typed_samples(name))):
            if subject.query_model(sample.model).unsupported:
                continue
            input_names = {port.name for port in sample.model.inputs}
            for subgraph in subject.compile_model(sample.model).subgraphs:
                specs |= {sample.model.spec(n) for n in subgraph.inputs if n not in input_names}
    kinds = {spec.type for spec in specs}
    assert {f"tensor({name})" for name in ELEMENT_TYPES} | {"tensor(string)"} <= kinds
    assert {"seq(tensor(float))", "optional(tensor(float))"} <= kinds
    assert {(), ("N", 3)} <= {spec.shape for spec in specs}


@pytest.mark.ray
@pytest.mark.slow
def test_cluster_devices_pass_every_check():
    with hetero.Core(devices={"CPU": 2}) as core:
        check_device(CoreSubject(core, "HETERO:CPU.0,ORT,CPU.1"))
