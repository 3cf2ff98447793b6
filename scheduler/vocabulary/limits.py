"""Limits: the bounds of a deployment's queues, and how its requests are joined."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.devices.request.run import MAX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests are joined.

    `size`: rows of a batch at most, >= 1; a request that brings more is a batch of its own.
    `timeout_s`: seconds that a request waits for others at most.
    `busy`: batches in flight, >= 1, with which the pipeline is busy; with fewer, none waits.
    `most`: batches in flight at most, >= `busy`.
    """

    size: int
    timeout_s: float
    busy: int = 1
    most: int = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a deployment's queues, and the order of its answers.

    `requests`: requests in flight at once, >= 1; where they are joined, so many for each row of a
        batch.
    `nbytes`: bytes in flight, of all deployments of the executor, at which requests wait: of inputs
        and of what stages are expected to make. One request of the deployment may exceed it.
    `waiting`: callers that may wait for admission.
    `timeout_s`: seconds until a request without a deadline of its own expires.
    `remembered`: ended requests whose story is kept.
    `admission_timeout_s`: seconds that a request waits for admission at most.
    `attempts`: how often a request that may itself be why its attempts fail is tried at most, >= 1.
        What is lost with a device among others is replayed free; lost so twice, it is replayed
        alone, and each further loss counts. 1: nothing is replayed.
    `stage_timeout_s`: seconds that a stage may run before its device's process is ended; 0: any.
    `in_order`: whether answers come in the order of admission; else each as soon as it is there.
    `batching`: how requests are joined into batches, each an attempt of several; None: they are
        not.
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

    def deadline_s(self, now_s: float, timeout_s: float | None) -> float:
        """Return when a request that is submitted now expires; `timeout_s`: its own time-out."""
        return now_s + min(self.timeout_s if timeout_s is None else timeout_s, MAX_TIMEOUT_S)
