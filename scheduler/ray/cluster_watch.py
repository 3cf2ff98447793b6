"""Detection of a lost cluster, earlier than Ray detects it.

If the head does not respond, Ray's client retries for a minute and then ends the process from C++,
without an exception. A process that leaves Ray before that survives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from hetero.devices.errors import ClusterError
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.ray.address import check_reachable, is_of_this_process, reach

_log = logging.getLogger(__name__)

#: Seconds between two checks, for a head that responded and for one that did not.
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 0.1
#: Time limits for the kernel of the head's host, and for the head itself, in seconds.
_HOST_S: Final = 0.5
_ANSWER_S: Final = 5.0
#: Seconds until a head counts as lost. A head that refuses connections has ended. A host that
#: cannot be reached (broken link, no power) gets more time, because requests can run without the
#: head. A head that accepts connections but is silent may be overloaded and gets the most time.
#: Each limit leaves time to leave Ray.
_REFUSED_S: Final = 3.0
_UNREACHED_S: Final = 18.0
_SILENT_S: Final = 25.0


class ClusterWatch:
    """Thread that checks whether a cluster's head still responds.

    `on_lost`: called once with the error when the head is lost, in the thread of the watch.
    """

    def __init__(self, address: str, on_lost: Callable[[ClusterError], None]) -> None:
        self.address = address
        #: The error to raise after the cluster was lost.
        self.loss_error: ClusterError | None = None
        self._on_lost = on_lost
        self._stop_event = threading.Event()
        self._thread = start_thread(self._watch, "cluster-watch")

    def check(self) -> None:
        """Raise ClusterError if the head does not respond now."""
        try:
            check_reachable(self.address, _ANSWER_S)
        except ClusterError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or is_of_this_process(cause):
                raise
            raise _cluster_gone_error(self.address, cause) from cause

    def close(self) -> None:
        """Stop checking."""
        self._stop_event.set()

    def join(self) -> None:
        """Wait until the callback for a loss has returned."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        silent_since_s: float | None = None
        while not self._stop_event.wait(_LOOK_S if silent_since_s is None else _AGAIN_S):
            begun_s = time.monotonic()
            try:
                reach(self.address, _ANSWER_S, _HOST_S)
                silent_since_s = None
            except OSError as error:
                if is_of_this_process(error):
                    silent_since_s = None
                    continue
                silent_since_s = silent_since_s or begun_s
                patience_s = _UNREACHED_S if isinstance(error, ConnectionError) else _SILENT_S
                if isinstance(error, ConnectionRefusedError):
                    patience_s = _REFUSED_S
                if time.monotonic() - silent_since_s >= patience_s:
                    self.loss_error = _cluster_gone_error(self.address, error)
                    _log.error("cluster=%s is gone: %s", self.address, error)
                    self._on_lost(self.loss_error)
                    return


def _cluster_gone_error(address: str, cause: OSError) -> ClusterError:
    return ClusterError(
        f"the Ray cluster at {address} is gone: {cause}. Start it again (`ray up cluster.yaml`, or "
        "`ray start`), and compile the model again in a new Core.",
        address=address,
        cause=str(cause),
    )
