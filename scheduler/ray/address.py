"""Cluster addresses: a check of their form, and that Ray responds there."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray.private_api import alive_hosts

#: The HTTP/2 client preface with its settings, and the type of the server's first frame
#: (RFC 9113, sections 3.4 and 6.5).
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HTTP2_SETTINGS: Final = b"\4"
#: Seconds that the head of a cluster may take to list its nodes.
_NODES_S: Final = 4.0
#: Errors of this process, which carry no information about the peer of a connection.
_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _check_form(address: str) -> None:
    """Raise ClusterError if an address is not ``host:port``."""
    if address.startswith("ray://"):
        raise ClusterError(
            f"{address!r} is an address for Ray Client, which hetero does not support: its "
            "process has to run on a node of the cluster. Use the head node's own address, which "
            "`ray start --head` prints, as in 10.0.0.1:6379, from a machine that reaches every "
            "node.",
            address=address,
        )
    _, separator, port = address.rpartition(":")
    # The system's resolver accepts larger port numbers and truncates them.
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ClusterError(
            f"{address!r} is no address of a Ray cluster; wanted host:port, as in 10.0.0.1:6379. "
            "Fix it, or leave it out (and RAY_ADDRESS unset) to start one here.",
            address=address,
        )


def reach(address: str, timeout_s: float, host_timeout_s: float) -> None:
    """Check that a gRPC server responds at an address; Ray itself would retry for a minute.

    `host_timeout_s`: limit for the connection to the host. The kernel accepts connections at once,
        even if the host is busy or Ray is stopped.
    Raises OSError: a ConnectionError if no connection was accepted; an error for which
        `is_of_this_process` is true if this process cannot open a connection.
    """
    host, _, port = address.rpartition(":")
    with _open_connection(host.strip("[]"), int(port), host_timeout_s) as connection:
        connection.settimeout(timeout_s)
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(_HTTP2_PREFACE)
            if connection.recv(9)[3:4] != _HTTP2_SETTINGS:
                raise ConnectionError("the server there is not Ray")


def check_reachable(address: str, timeout_s: float) -> None:
    """Raise ClusterError, caused by the error of `reach`, if no Ray responds at an address.

    Also raised if the address is not ``host:port``.
    """
    _check_form(address)
    try:
        reach(address, timeout_s, timeout_s)
    except OSError as error:
        if is_of_this_process(error):
            raise ClusterError(
                f"this process cannot ask the Ray cluster at {address}: {error}. Close what it has "
                "open, or raise its limit (`ulimit -n`).",
                address=address,
                cause=str(error),
            ) from error
        raise ClusterError(
            f"nothing answers at {address}: {error}. Start Ray there (`ray start --head`, or `ray "
            "up cluster.yaml`), or leave the address out (and RAY_ADDRESS unset) to start one "
            "here.",
            address=address,
            cause=str(error),
        ) from error


def is_of_this_process(error: OSError) -> bool:
    """Return whether an error of `reach` comes from this process and not from the cluster."""
    return error.errno in _OURS


def check_is_node(address: str) -> set[str]:
    """Check that this machine is a node of a cluster; return the addresses of all nodes.

    Ray itself would search for a minute.
    Raises ClusterError: this machine is not a node.
    """
    hosts = alive_hosts(address, _NODES_S)
    if hosts and not any(map(_is_here, hosts)):
        raise ClusterError(
            f"this machine is no node of the Ray cluster at {address}, whose nodes are "
            f"{', '.join(sorted(hosts))}: join it first (`ray start --address={address}`, with "
            "--num-cpus=0 if it is to compute nothing), or run this on one of them.",
            address=address,
        )
    return hosts


def _is_here(host: str) -> bool:
    """Whether an address belongs to this machine."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def _open_connection(host: str, port: int, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout_s)
    except OSError as error:
        if isinstance(error, ConnectionError) or is_of_this_process(error):
            raise
        raise ConnectionError(f"its host is not there: {error}") from error
