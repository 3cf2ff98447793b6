"""Bytes in flight: the shared counter, its callbacks, and the estimate of output sizes."""

from __future__ import annotations

import itertools

import pytest

from hetero.devices.request.request import Request
from hetero.scheduler import Limits
from hetero.scheduler.client.bytes_in_flight import BytesInFlight, ExpectedBytes
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.types.events import Submitted
from hetero.scheduler.types.request_record import RequestRecord
from tests.support.machine_routes import route


@pytest.mark.parametrize(
    ("sizes", "expected_nbytes"),
    [
        ([], 0),
        ([(16, 100)], 100),
        ([(16, 100), (16, 300)], 300),
        ([(16, 100), (16, 0)], 87),  # 7/8 of 100
        ([(16, 100), (16, 0), (16, 0)], 76),  # 7/8 of 87
        ([(16, 100), (16, 90)], 90),
        ([(31, 100)], 100),  # as many bits as 16
        ([(15, 100), (1, 7)], 100),  # the nearest below
        ([(15, 100), (16, 0)], 0),
        ([(1, 7), (15, 100)], 100),
        ([(32, 100)], 0),  # above
        ([(0, 5)], 5),
    ],
)
def test_expected_outputs_of_sixteen_bytes(sizes, expected_nbytes):
    expected = ExpectedBytes()
    for input_nbytes, output_nbytes in sizes:
        expected.record(input_nbytes, output_nbytes)
    assert expected.output_nbytes(16) == expected_nbytes


def record() -> RequestRecord:
    return RequestRecord(Submitted(0.0, 1, 0, 9.0), 1, 9.0)


def test_decrease_calls_each_waiting_callback_once():
    counter, calls = BytesInFlight(), list[str]()
    first, second = record(), record()
    counter.count(first, 10, 1)
    counter.when_fewer(lambda: calls.append("first"))
    counter.when_fewer(lambda: calls.append("second"))
    counter.count(second, 5, 1)
    counter.count(second, 5, 0)
    assert calls == []
    counter.count(second, 0, 0)
    assert calls == ["first", "second"]
    counter.count(first, 5, 1)
    assert calls == ["first", "second"]
    assert (counter.nbytes, counter.num_running) == (5, 1)


def test_repeated_count_changes_nothing():
    counter, request = BytesInFlight(), record()
    for _ in range(2):
        counter.count(request, 10, 1)
    assert (counter.nbytes, counter.num_running) == (10, 1)
    for _ in range(2):
        counter.count(request, 0, 0)
    assert (counter.nbytes, counter.num_running) == (0, 0)


def test_callback_may_wait_again():
    counter, calls = BytesInFlight(), list[int]()
    request = record()

    def wait_again() -> None:
        calls.append(counter.nbytes)
        counter.when_fewer(wait_again)

    counter.count(request, 10, 1)
    counter.when_fewer(wait_again)
    counter.count(request, 9, 1)
    counter.count(request, 7, 1)
    assert calls == [9, 7]


def test_direct_run_is_counted_until_its_end():
    counter, calls = BytesInFlight(), list[int]()
    machine = ClientMachine(Limits(), [route("A")], in_flight=counter)
    counter.count(record(), 100, 1)
    run = DirectRun(Request(), 9, 0.0)
    assert machine.begin_direct(run, itertools.count(1))
    assert (counter.nbytes, counter.num_running, run.is_admitted) == (109, 2, True)
    counter.when_fewer(lambda: calls.append(counter.nbytes))
    assert machine.end_direct(run, 1.0, 0)
    assert (counter.nbytes, counter.num_running, run.is_admitted) == (100, 1, False)
    assert calls == [100]
