"""The devices of a Core, one or several, pass the checks that every device passes."""

import pytest

import hetero
from devices.testing import check_device, subject_checks
from hetero.subject import CoreSubject


@pytest.fixture(scope="module", params=["CPU", "HETERO:CPU", "HETERO:CPU,ORT"])
def subject(request):
    with hetero.Core("inprocess") as core:
        yield CoreSubject(core, request.param)


@pytest.mark.parametrize("check", subject_checks(), ids=lambda check: check.__name__)
def test_devices_of_this_process(subject, check):
    check(subject)


def test_what_is_checked_is_cut_between_all_nodes():
    with hetero.Core("inprocess") as core:
        subject = CoreSubject(core, "HETERO:CPU,ORT")
        compiled = subject.compile_model("light:squeezenet")
        devices = [subgraph.device for subgraph in compiled.subgraphs]
        assert {*devices} == {"CPU", "ORT"}
        assert len(devices) > len(compiled.source.node_names) / 2


@pytest.mark.ray
@pytest.mark.slow
def test_devices_of_a_cluster():
    with hetero.Core(devices={"CPU": 2}) as core:
        check_device(CoreSubject(core, "HETERO:CPU.0,ORT,CPU.1"))
