"""Baselines written by hand: a chain of plain ZeroMQ processes, of Ray actors, or of Ray Serve."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from benchmarks import zmq_relay
from benchmarks.timing import Submit

#: Time limit for a peer's result.
_PATIENCE_S = 60.0
_ROOT = Path(__file__).parents[1]


@contextmanager
def zmq_chain(stages: int, x: np.ndarray, stage_s: float = 0.0) -> Iterator[Submit]:
    """Run a chain of processes over ipc, one for each stage; the last one sends to the client."""
    with tempfile.TemporaryDirectory(prefix="zc-") as folder:
        ends = [f"ipc://{folder}/{i}" for i in range(stages + 1)]
        context = zmq.Context()
        relays = [
            subprocess.Popen(
                [sys.executable, "-m", zmq_relay.__name__, take, give, str(stage_s)], cwd=_ROOT
            )
            for take, give in pairwise(ends)
        ]
        try:
            pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            pull.setsockopt(zmq.RCVTIMEO, round(_PATIENCE_S * 1e3))
            pull.bind(ends[-1])
            push.connect(ends[0])

            def submit() -> Callable[[], np.ndarray]:
                zmq_relay.send(push, b"", x)
                return lambda: zmq_relay.receive(pull)[1]

            yield submit
        finally:
            for relay in relays:
                relay.kill()
                relay.wait()
            context.destroy(linger=0)


class _Actor:
    def step(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)


@contextmanager
def actor_chain(stages: int, x: np.ndarray) -> Iterator[Submit]:
    """Run a chain of Ray actors; each gets the reference of the previous result."""
    import ray

    remote: Any = ray.remote(num_cpus=0)(_Actor)
    actors = [remote.remote() for _ in range(stages)]

    def submit() -> Callable[[], np.ndarray]:
        ref: Any = x
        for actor in actors:
            ref = actor.step.remote(ref)
        return lambda: ray.get(ref, timeout=_PATIENCE_S)

    try:
        yield submit
    finally:
        for actor in actors:
            ray.kill(actor)


class _Replica:
    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)


class _Composition:
    """Ingress of a Serve application that passes one deployment's response to the next."""

    def __init__(self, *stages: Any) -> None:
        self._stages = stages

    async def __call__(self, x: np.ndarray) -> np.ndarray:
        response: Any = x
        for stage in self._stages:
            response = stage.remote(response)
        answer: np.ndarray = await response
        return answer


@contextmanager
def serve_chain(stages: int, x: np.ndarray) -> Iterator[Submit]:
    """Run a chain of composed Ray Serve deployments."""
    from ray import serve

    options = {"max_ongoing_requests": 1000, "ray_actor_options": {"num_cpus": 0}}
    bound = [
        serve.deployment(**options)(_Replica).options(name=f"stage{i}").bind()
        for i in range(stages)
    ]
    application = serve.deployment(**options)(_Composition).bind(*bound)
    handle = serve.run(application, name="chain", route_prefix=None)

    def submit() -> Callable[[], np.ndarray]:
        response = handle.remote(x)
        return lambda: response.result(timeout_s=_PATIENCE_S)

    try:
        yield submit
    finally:
        with suppress(Exception):  # it also ends with its Ray cluster
            serve.delete("chain")


#: Name -> function that starts a chain with a number of stages for an input.
PEERS = {"zmq": zmq_chain, "actors": actor_chain, "serve": serve_chain}
#: Peers that need a running Ray cluster.
ON_RAY = ("actors", "serve")


def missing(peer: str) -> str | None:
    """Return the reason why a peer cannot be measured, or None."""
    if peer == "serve" and not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
        return "not measured: Ray Serve is not installed (pip install 'ray[serve]')"
    return None
