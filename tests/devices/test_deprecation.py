"""Deprecated aliases of renamed attributes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.properties import PropertyTable
from hetero.devices.request.response import Response


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (Model, "maker", "producer"),
        (Model, "moving", "request_dependent"),
        (PropertyTable, "shaping", "caching_properties"),
        (Response, "stage_runs", "stage_timings"),
        (RunContext, "left", "resident_outputs"),
    ],
)
def test_old_name_of_an_attribute_warns(kind, old, new):
    value = object()
    with pytest.warns(DeprecationWarning, match=f"'{old}' is deprecated; use '{new}'") as caught:
        assert vars(kind)[old].fget(SimpleNamespace(**{new: value})) is value
    assert caught[0].filename == __file__
    assert hasattr(kind, new) or new in kind.__annotations__
