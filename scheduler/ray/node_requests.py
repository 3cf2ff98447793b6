"""Requests for more nodes, which Ray's autoscaler starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ray.autoscaler.sdk import request_resources

from hetero.scheduler.ray.nodes import alive_nodes
from hetero.scheduler.ray.private_api import is_autoscaled

_log = logging.getLogger(__name__)

#: Seconds in which a cloud's machine starts, installs its packages and joins the cluster.
NODE_START_S: Final = 600.0
#: Seconds between two looks at the nodes.
_LOOK_S: Final = 1.0


class NodeRequests:
    """Nodes that this client has requested.

    The cluster has one request, which a later one replaces. The request also keeps the nodes:
    devices take no resources of Ray, so the autoscaler would stop their nodes as idle.
    """

    def __init__(self) -> None:
        self._has_request = False

    def add(self, count: int, is_enough: Callable[[], bool], timeout_s: float) -> bool:
        """Request more nodes and wait for them; return whether there are enough then.

        `is_enough`: returns whether the nodes have what is needed.
        """
        if not is_autoscaled():
            return False
        nodes = alive_nodes()
        # Each present node is full with its own bundle, so that the others need new nodes.
        bundles = [{"CPU": node.num_cpus} for node in nodes if node.num_cpus]
        _log.info("requesting %d nodes in addition to %d", count, len(nodes))
        request_resources(bundles=[*bundles, *({"CPU": 1} for _ in range(count))])
        self._has_request = True
        until_s = time.monotonic() + timeout_s
        while not is_enough():
            if time.monotonic() >= until_s:
                _log.warning("%d requested nodes did not start in %g s", count, timeout_s)
                request_resources(bundles=bundles)
                return False
            time.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        """Withdraw the request, so that the autoscaler may stop the nodes."""
        if self._has_request:
            self._has_request = False
            request_resources(bundles=[])
