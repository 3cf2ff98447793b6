"""Limits of a deployment: queue bounds, timeouts, retries and dynamic batching."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.devices.request.run import MAX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Batching:
    """Parameters of dynamic batching.

    `size`: maximum rows of a batch, >= 1; a larger request is a batch of its own.
    `timeout_s`: maximum wait of a request for its batch to fill.
    `busy`: number of batches in flight, >= 1, that keeps the pipeline busy; with fewer, requests
        do not wait.
    `most`: maximum number of batches in flight, >= `busy`.
    """

    size: int
    timeout_s: float
    busy: int = 1
    most: int = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a deployment, and the order of its results.

    `requests`: maximum requests in flight, >= 1; with batching, this many per row of a batch.
    `nbytes`: bytes in flight, over all deployments of the executor, above which requests wait:
        inputs plus expected stage outputs. One request of the deployment may exceed it.
    `waiting`: maximum number of callers that wait for admission.
    `timeout_s`: time until a request without its own deadline expires.
    `remembered`: number of ended requests whose history is kept.
    `admission_timeout_s`: maximum wait for admission.
    `attempts`: maximum attempts of a request that may cause its own failures, >= 1. If a device is
        lost with several requests, these are replayed without counting. A request that was lost
        twice is in quarantine: it is replayed alone, and each further loss counts. 1 disables
        replay.
    `stage_timeout_s`: maximum run time of a stage, after which its device is restarted; 0 for none.
    `in_order`: whether results are delivered in the order of admission.
    `batching`: parameters of dynamic batching; None disables it.
    `requests_overlap`: whether several requests are expected at the same time; otherwise a device
        may use the cores of devices that wait for its results.
    """

    requests: int = 32
    nbytes: int = 2**30
    waiting: int = 1024
    timeout_s: float = 600.0
    remembered: int = 1024
    admission_timeout_s: float = 600.0
    attempts: int = 5
    in_order: bool = False
    stage_timeout_s: float = 0.0
    batching: Batching | None = None
    requests_overlap: bool = True

    def deadline_s(self, now_s: float, timeout_s: float | None) -> float:
        """Return the time at which a request expires; `timeout_s` is its own limit."""
        return now_s + min(self.timeout_s if timeout_s is None else timeout_s, MAX_TIMEOUT_S)
