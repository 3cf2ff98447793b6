"""States of a request over sequences of runs, compared with a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hetero.devices.errors import TensorShapeError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.variable_states import RequestStates


def variable(name: str, *shape: Any) -> Variable:
    return Variable(
        TensorSpec(name, "tensor(float)", shape), TensorSpec(f"{name}.next", "tensor(float)", shape)
    )


A, B = variable("a", "N", 2), variable("b", "N", "L")
X = TensorSpec("x", "tensor(float)", ("N", 3))


def array(number: float, rows: int = 1, columns: int = 2) -> np.ndarray:
    return np.full((rows, columns), number, np.float32)


NUMBERS = st.integers(1, 9).map(float)
VARIABLES = st.sampled_from([A, B])
ROWS = st.integers(1, 2)


class StateSequences(RuleBasedStateMachine):
    """Values that are set, reset, read and produced by runs of one or two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.states = RequestStates((A, B), (X,))
        self.expected: dict[str, np.ndarray] = {}
        self.set_by_user: set[str] = set()

    @rule(v=VARIABLES, number=NUMBERS, rows=ROWS)
    def set(self, v: Variable, number: float, rows: int) -> None:
        value = array(number, rows)
        self.states.set(v, value)
        self.expected[v.name] = value.copy()
        self.set_by_user.add(v.name)
        value[:] = -1  # the caller's array may change afterwards

    @rule(v=VARIABLES)
    def reset(self, v: Variable) -> None:
        self.states.reset(v)
        self.expected.pop(v.name, None)

    @rule(rows=ROWS, number=NUMBERS, succeeds=st.booleans())
    def run(self, rows: int, number: float, succeeds: bool) -> None:
        inputs = {"x": array(0, rows, 3)}
        misfits = [
            name
            for name, value in self.expected.items()
            if value.shape[0] != rows and name not in self.set_by_user
        ]
        if misfits:
            with pytest.raises(TensorShapeError, match=f"state '{misfits[0]}'|state '"):
                self.states.values_for(inputs)
            return
        values = self.states.values_for(inputs)
        assert values.keys() == {"a", "b"}
        for name, columns in (("a", 2), ("b", 0)):
            wanted = self.expected.get(name, array(0, rows, columns))
            np.testing.assert_array_equal(values[name], wanted)
        if succeeds:
            self.expected = {"a": array(number, rows), "b": array(number + 1, rows)}
            self.set_by_user.clear()
            self.states.commit({f"{n}.next": v for n, v in self.expected.items()})

    @invariant()
    def values_can_be_read(self) -> None:
        for v, columns in ((A, 2), (B, 0)):
            wanted = self.expected.get(v.name, array(0, 0, columns))
            np.testing.assert_array_equal(self.states.get(v), wanted)


TestStateSequences = StateSequences.TestCase
TestStateSequences.settings = settings(max_examples=20, stateful_step_count=12)


def test_state_set_twice_has_the_second_value():
    states = RequestStates((A,), (X,))
    states.set(A, array(1))
    states.set(A, array(2, rows=2))
    np.testing.assert_array_equal(states.values_for({"x": array(0, 1, 3)})["a"], array(2, rows=2))


def test_reset_of_a_state_that_was_set_forgets_it():
    states = RequestStates((A,), (X,))
    states.set(A, array(1, rows=2))
    states.reset(A)
    states.reset(A)
    np.testing.assert_array_equal(states.values_for({"x": array(0, 3, 3)})["a"], array(0, 3))


def test_sizes_of_a_run_agree_over_all_variables():
    states = RequestStates((A, B), (X,))
    states.commit({"a.next": array(1, 2), "b.next": array(1, 2)})
    assert states.values_for({"x": array(0, 2, 3)})["b"].shape == (2, 2)
    with pytest.raises(TensorShapeError, match=r"state 'a'.*got \[2, 2\]"):
        states.values_for({"x": array(0, 3, 3)})


def test_outputs_are_listed_once():
    shared = Variable(TensorSpec("c", "tensor(float)", (1,)), A.output)
    assert RequestStates((A, B, shared), ()).outputs == ("a.next", "b.next")


def test_host_values_are_never_the_current_resident_ones():
    states = RequestStates((A,), (X,))
    values = {"a": array(1)}
    states.commit({"a.next": values["a"]})
    assert not states.are_current(values)
    assert states.are_current({})


class DeviceTensor(RemoteTensor):
    """A tensor in the memory of a device that cannot join tensors."""

    device, by_reference = "X.0", False

    def __init__(self, value):
        self.value, self.shape, self.dtype = value, value.shape, value.dtype

    def to_host(self):
        return self.value.copy()

    copy_from = to_host


def test_device_tensors_are_read_and_joined_on_the_host():
    states, joined = RequestStates((A,), (X,)), RequestStates((A,), (X,))
    states.commit({"a.next": DeviceTensor(np.array([[1, 2], [3, 4]], np.float32))})
    assert type(states.get(A)) is np.ndarray
    np.testing.assert_array_equal(states.get(A), [[1, 2], [3, 4]])
    joined.join([(states, [1, 1])], {"a": RowLayout(0)})
    np.testing.assert_array_equal(joined.get(A), [[3, 4], [3, 4]])


def test_join_takes_rows_of_several_requests():
    first, second, joined = (RequestStates((A,), (X,)) for _ in range(3))
    first.commit({"a.next": np.array([[1, 2], [3, 4]], np.float32)})
    second.commit({"a.next": np.array([[5, 6]], np.float32)})
    joined.set(A, array(9))
    joined.join([(first, [1]), (second, [0]), (first, [0])], {"a": RowLayout(0)})
    np.testing.assert_array_equal(joined.get(A), [[3, 4], [5, 6], [1, 2]])
    with pytest.raises(TensorShapeError):  # the values are a run's, no longer the user's
        joined.values_for({"x": array(0, 1, 3)})
