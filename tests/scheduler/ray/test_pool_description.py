"""Descriptions of a pool: which requests of clients it serves."""

from __future__ import annotations

import pytest

from hetero.scheduler.ray.pool import Pool


@pytest.mark.parametrize(
    ("devices", "plugins", "expected"),
    [
        ({}, (), True),
        ({"ORT": 2}, (), True),
        ({"ORT": 1}, (), False),  # the pool has more
        ({"ORT": 3}, (), False),  # the pool has fewer
        ({"CPU": 1}, (), True),  # one by default
        ({"CPU": 2}, (), False),
        ({"CPU": 0}, (), False),
        ({"ORT": 2, "CPU": 2}, (), False),
        ({"ORT": 2}, ("a:A",), True),
        ({"ORT": 2}, ("a:A", "b:B"), True),
        ({"ORT": 2}, ("a:A", "c:C"), False),
    ],
)
def test_pool_serves_exactly_the_devices_that_a_client_names(devices, plugins, expected):
    assert Pool({"ORT": 2}, ("a:A", "b:B")).offers(devices, plugins) == expected


def test_pools_are_equal_by_devices_and_plugins():
    assert Pool({"ORT": 2}) == Pool({"ORT": 2})
    assert Pool({"ORT": 2}) != Pool({"ORT": 2, "CPU": 1})
    assert Pool({"ORT": 2}) != Pool({"ORT": 2}, ("a:A",))
