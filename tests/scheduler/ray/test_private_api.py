"""Each use of Ray's private modules, on a real cluster."""

from __future__ import annotations

import os

import pytest
import ray

import hetero
from hetero.scheduler.ray import private_api

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def core():
    with hetero.Core(devices={"CPU": 1}) as core:
        assert core.available_devices
        yield core


def test_alive_hosts_names_this_node(core):
    address = ray.get_runtime_context().gcs_address
    assert private_api.alive_hosts(address, 10.0) == {ray.util.get_node_ip_address()}


def test_current_connection_is_one_object_while_connected(core):
    connection = private_api.current_connection()
    assert connection is not None
    assert private_api.current_connection() is connection


def test_bootstrap_address_finds_the_cluster_of_the_environment(core, monkeypatch):
    address = ray.get_runtime_context().gcs_address
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert private_api.bootstrap_address() == address


def test_store_keeps_the_first_value_without_overwrite(core):
    store, other = private_api.ClusterStore(b"test-a"), private_api.ClusterStore(b"test-b")
    assert store.get(b"key") is None
    assert not store.put(b"key", b"first", overwrite=False)
    assert store.put(b"key", b"second", overwrite=False)
    assert store.get(b"key") == b"first"
    assert store.put(b"key", b"third")
    assert store.get(b"key") == b"third"
    assert other.get(b"key") is None
    assert list(store.keys("k")) == [b"key"]
    store.delete(b"key")
    assert store.get(b"key") is None


def test_reload_credentials_keeps_the_cluster_usable(core):
    private_api.enable_token()
    private_api.reload_credentials()
    assert ray.get(ray.put(1)) == 1


def test_fork_ends_without_ending_the_parents_ray(core):
    child = os.fork()
    if not child:
        os._exit(0 if private_api.current_connection() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ray.get(ray.put(2)) == 2
