"""The error tree: every error is also a built-in type, keeps its data, and survives pickling."""

from __future__ import annotations

import inspect
import pickle

from hetero.devices import errors
from hetero.devices.plugin.support import Refusal
from tests.support.rows import for_each_row

LEAVES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.HeteroError)
]


@for_each_row("cls", LEAVES)
def test_errors_pickle_with_their_data(cls):
    error = cls("where: got x, wanted y; do z", node="conv1", refusal=Refusal("dtype", "no"))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == "where: got x, wanted y; do z"
    assert copy.node == "conv1"
    assert copy.refusal == error.refusal


@for_each_row("cls", LEAVES)
def test_each_error_is_a_builtin_type_too(cls):
    if cls is not errors.HeteroError:
        builtin = [c for c in cls.__mro__ if c.__module__ == "builtins"]
        assert len(builtin) > 3, f"{cls.__name__} is only an Exception"


def test_docstring_lists_every_error():
    for cls in LEAVES:
        assert cls.__name__ in errors.__doc__
