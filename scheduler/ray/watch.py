"""Noticing that a cluster is gone, before Ray does.

Ray's client tries for a minute to reach a head that does not answer, and then ends the process
from its C++ side, without an exception. Who leaves Ray before that keeps the process.
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

#: Seconds between looks, of a head that answered and of one that did not.
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 0.1
#: Seconds for the answer of the head's host, which its kernel gives, and of the head.
_HOST_S: Final = 0.5
_ANSWER_S: Final = 5.0
#: A head that refuses is gone after so many seconds; one whose host is not reached (a cut link, no
#: power) after more, as requests that need no head go on meanwhile, and one that lets in and is
#: silent (it has too much to do) after more still. All leave time to leave Ray.
_REFUSED_S: Final = 3.0
_UNREACHED_S: Final = 18.0
_SILENT_S: Final = 25.0


class ClusterWatch:
    """A thread that looks whether a cluster's head still answers.

    `tell`: called once, in the watch's thread, with what to raise.
    """

    def __init__(self, address: str, tell: Callable[[ClusterError], None]) -> None:
        self.address = address
        #: What to raise once the cluster counts as gone.
        self.gone: ClusterError | None = None
        self._tell = tell
        self._ended = threading.Event()
        self._thread = start_thread(self._watch, "cluster-watch")

    def look(self) -> None:
        """Raise ClusterError if the head does not answer now."""
        try:
            check_reachable(self.address, _ANSWER_S)
        except ClusterError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or is_of_this_process(cause):
                raise
            raise _gone(self.address, cause) from cause

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def join(self) -> None:
        """Wait until what a loss entails is done."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        silent_since_s: float | None = None
        while not self._ended.wait(_LOOK_S if silent_since_s is None else _AGAIN_S):
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
                    self.gone = _gone(self.address, error)
                    _log.error("cluster=%s is gone: %s", self.address, error)
                    self._tell(self.gone)
                    return


def _gone(address: str, cause: OSError) -> ClusterError:
    return ClusterError(
        f"the Ray cluster at {address} is gone: {cause}. Start it again (`ray up cluster.yaml`, or "
        "`ray start`), and compile the model again in a new Core.",
        address=address,
        cause=str(cause),
    )
