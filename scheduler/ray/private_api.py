"""Private parts of Ray that hetero needs, in one file; tests call each one on a real cluster.

Ray offers no public way to do these things. A new minor version of Ray may change them: only this
file has to follow.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from hetero.devices.file_reader import parse_json, read_regular

#: Environment variable with which a Ray that starts listens on 127.0.0.1 only, as on macOS.
LOOPBACK_ONLY: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
#: Label of nodes that an autoscaler has started, and the key of its report in the cluster's store.
_NODE_TYPE_LABEL: Final = "ray.io/node-group"
_AUTOSCALER_STATUS: Final = b"__autoscaling_status"
#: State of a node that is alive, in the table of Ray's head (gcs.proto, GcsNodeInfo).
_ALIVE: Final = 0
#: Size limit of the file with the address of a cluster.
_MAX_ADDRESS_NBYTES: Final = 1024


def shared_clusters(processes: Path = Path("/proc")) -> set[str]:
    """Return the addresses of clusters that run here and were started by ``ray start``.

    That command writes the address of its cluster to a file in its temporary folder. A Ray that a
    program started for itself has no such file.
    """
    clusters = set()
    for commands in processes.glob("[0-9]*/cmdline"):
        # The process may have ended or belong to another user, and the file may not be Ray's.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            program, *arguments = read_regular(commands).decode(errors="replace").split("\0")
            if Path(program).name != "raylet":
                continue
            options = dict(a.split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
            address = options.get("--gcs-address", "")
            file = Path(options.get("--temp_dir", "")) / "ray_current_cluster"
            if address and read_regular(file, _MAX_ADDRESS_NBYTES).decode().strip() == address:
                clusters.add(address)
    return clusters


def alive_hosts(address: str, timeout_s: float) -> set[str]:
    """Return the addresses of a cluster's live nodes, without joining the cluster."""
    raylet: Any = importlib.import_module("ray._raylet")  # compiled, and without types
    nodes = raylet.GcsClient(address=address).get_all_node_info(timeout=timeout_s).values()
    return {node.node_manager_address for node in nodes if node.state == _ALIVE}


def is_autoscaled() -> bool:
    """Return whether the cluster has an autoscaler that starts nodes.

    `ray up` and KubeRay label their nodes. Otherwise the autoscaler's report has the nodes' types:
    the monitor of a cluster of fixed size names each of them after its node, ``node_ID``.
    """
    if any(_NODE_TYPE_LABEL in (row.get("Labels") or {}) for row in ray.nodes()):  # type: ignore[no-untyped-call]  # Ray's gap
        return True
    status = parse_json((_internal_kv_get(_AUTOSCALER_STATUS) or b"{}").decode())
    types = (status.get("autoscaler_report") or {}).get("node_type_mapping") or {}
    return any(not node_type.startswith("node_") for node_type in types.values())


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let a Ray that starts in the block listen on 127.0.0.1 only, as on Windows and macOS."""
    constants = ray._private.ray_constants
    (name,) = LOOPBACK_ONLY
    previous, is_enabled = os.environ.get(name), constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(LOOPBACK_ONLY)  # for the processes that it starts
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = is_enabled
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


@contextlib.contextmanager
def without_monitors() -> Iterator[None]:
    """Start a Ray in the block without its autoscaler, its log monitor and its API server.

    These are Python processes that a local Ray does not need: it has a fixed size, workers do not
    log to the driver, and without the dashboard the API server only reports usage statistics. Ray
    would wait for the API server before it starts a node.
    """
    parameters: Any = ray._private.parameter
    services: Any = ray._private.services
    ray_params, start_api_server = parameters.RayParams, services.start_api_server
    parameters.RayParams = partial(ray_params, no_monitor=True, include_log_monitor=False)
    services.start_api_server = lambda *_, **__: ("", None)
    try:
        yield
    finally:
        parameters.RayParams, services.start_api_server = ray_params, start_api_server


def current_connection() -> object:
    """Return an object that identifies this process's connection to Ray; None without one.

    Ray's ids do not identify it: a driver's id is that of its job, which another cluster may also
    have. Asking Ray for ids just after another thread called `ray.shutdown` ends the process.
    """
    worker: Any = ray._private.worker.global_worker
    return worker.node  # `ray.shutdown` sets it to None first


def silence_error_messages() -> None:
    """Stop Ray from printing errors of workers on the driver: they reach callers as exceptions."""
    worker: Any = ray._private.worker.global_worker
    worker.threads_stopped.set()
    worker.gcs_error_subscriber.close()


def enable_token() -> None:
    """Use the token of the environment or the home folder, if there is one, as `ray start` does.

    `ray.init` of Ray 2.57 ends the process if a cluster requires a token and the mode is not set.
    Raises ray.exceptions.AuthenticationError: a token is required and missing.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    if "RAY_AUTH_MODE" not in os.environ and loader.has_token(ignore_auth_mode=True):
        os.environ["RAY_AUTH_MODE"] = "token"
        reload_credentials()
    ensure_token_if_auth_enabled(create_token_if_missing=False)


def reload_credentials() -> None:
    """Make Ray read its configuration and token again; it reads them once per process.

    The mode comes first: otherwise a thread of Ray that still ends would miss the token.
    """
    raylet: Any = importlib.import_module("ray._raylet")  # compiled, and without types
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def disarm_in_fork() -> None:
    """Keep a forked process from ending its parent's Ray, or waiting for threads it lacks."""
    module: Any = ray._private.worker
    if sys.excepthook is module.custom_excepthook:  # it reports to Ray, and would wait for ever
        sys.excepthook = module.normal_excepthook
    if module._global_node is not None:
        module._global_node.kill_all_processes = lambda *arguments, **options: None
    # Destructors of these wait for threads that a fork does not have: never collect them.
    worker = module.global_worker
    owners = (worker, "core_worker"), (worker, "gcs_client"), (worker, "gcs_error_subscriber")
    for owner, name in (*owners, (ray._private.state.state, "_global_state_accessor")):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(owner, name, None)))


class ClusterStore:
    """Key-value store of a cluster's head; keys share a namespace."""

    def __init__(self, namespace: bytes) -> None:
        self._namespace = namespace

    def get(self, key: bytes | str) -> bytes | None:
        """Return a value; None without one."""
        value: bytes | None = _internal_kv_get(key, namespace=self._namespace)
        return value

    def put(self, key: bytes | str, value: bytes, *, overwrite: bool = True) -> bool:
        """Store a value; return whether the key existed before."""
        return bool(_internal_kv_put(key, value, overwrite=overwrite, namespace=self._namespace))

    def delete(self, key: bytes | str) -> None:
        """Remove a key, if it exists."""
        _internal_kv_del(key, namespace=self._namespace)

    def keys(self, prefix: str) -> Iterable[bytes]:
        """Return the keys that begin with a prefix."""
        keys: list[bytes] = _internal_kv_list(prefix, namespace=self._namespace)
        return keys
