"""Client program of `test_hosts`, on the first of three hosts.

``python -m tests.hosts.driver NETWORK SCENARIO`` runs a scenario and prints its report as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from math import inf
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import ray

import hetero
from benchmarks.chaos import result
from benchmarks.chaos_flow import CONFIG, DEVICES, PLACES, Flow, model, question
from benchmarks.generate import timed_tokens
from hetero.examples.small_decoder import small_decoder
from tests.hosts.network import Network

PORT: Final = 6379
#: Timeout of every wait.
WAIT_LIMIT_S: Final = 120.0
#: Timeout of the flow's requests, longer than the fault.
TIMEOUT_S: Final = 60.0
CUT_S: Final = 20.0
#: Time that the head is disconnected while no request needs it.
HEAD_ABSENCE_S: Final = 15.0
#: Timeout of the request that has to end while the link is cut.
SHORT_TIMEOUT_S: Final = 3.0
#: Tokens of each sequence, and duration of the fault in its middle.
TOKENS: Final = 40
FAULT_S: Final = 10.0
PLUGINS: Final = ("tests.scheduler.plugins:ToyPlugin",)


def start_ray(network: Network, host: int, head: int = 1) -> None:
    """Start Ray on a host with its command, like a user."""
    address = f"{network.address(head)}:{PORT}"
    role = ["--head", f"--port={PORT}"] if host == head else [f"--address={address}"]
    network.start(
        host,
        [
            str(Path(sys.executable).with_name("ray")),
            "start",
            *role,
            *(["--include-dashboard=false"] if host == head else []),
            f"--node-ip-address={network.address(host)}",
            f"--node-name=host{host}",
            "--num-cpus=1",
            "--object-store-memory=100000000",
            "--block",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def cluster(network: Network, hosts: int, head: int = 1, **devices: int) -> hetero.Core:
    """Start Ray on the hosts, the head first; return a Core with all their devices.

    `devices`: numbers of devices per host in addition to one TOY and one NULL.
    """
    end_s = time.monotonic() + WAIT_LIMIT_S
    first = (head, 1) if head != 1 else (1,)  # a client connects to the Ray process of its own host
    for host in first:
        start_ray(network, host, head)
    while True:
        core = hetero.Core(
            address=f"{network.address(head)}:{PORT}",
            devices={"TOY": 1, "NULL": 1, **devices},
            plugins=PLUGINS,
        )
        try:
            wait_for(core, 1, end_s)
            break
        except hetero.ClusterError:  # Ray is still starting
            core.close()
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
    for host in range(2, hosts + 1):  # in order, because it determines the devices' numbers
        if host not in first:
            start_ray(network, host, head)
        wait_for(core, host, end_s)
    return core


def wait_for(core: hetero.Core, hosts: int, end_s: float) -> None:
    """Wait until `hosts` hosts offer their devices."""
    while len(toy_devices(core)) < hosts:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{hosts} hosts wanted, devices are {core.available_devices}")
        time.sleep(0.2)


def toy_devices(core: hetero.Core) -> dict[str, str]:
    """Return the host of each TOY device."""
    return {row.name: row.node for row in core.device_descriptors if row.plugin == "TOY"}


def start_flow(core: hetero.Core, places: Mapping[str, str], devices: str = DEVICES) -> Flow:
    """Start a constant flow of requests."""
    compiled = core.compile_model(model(), devices, CONFIG, affinity=places)
    infer(compiled, WAIT_LIMIT_S)
    return Flow(compiled, window=8, rate=50, timeout_s=TIMEOUT_S)


def recover(flow: Flow, faults: list[tuple[float, str]]) -> dict[str, Any]:
    """Wait 10 s for the flow to recover, stop it, and return its report."""
    time.sleep(10)
    stopped_s = time.monotonic()
    flow.stop(TIMEOUT_S + 10)
    report = result(flow, faults, time.monotonic())
    # Gaps after the stop do not count, because the last results may be on a slow link.
    ends = [*sorted(end_s for _, end_s in flow.answers if end_s < stopped_s), stopped_s]
    gaps = [(later - end_s, later) for end_s, later in pairwise(ends)]
    report["longest_gaps_s"] = {
        kind: round(max((gap for gap, later_s in gaps if later_s > at_s), default=inf), 3)
        for at_s, kind in faults
    }
    report["recovery_s"] = {
        kind: result(flow, [(at_s, kind)], time.monotonic())["recovery_max_s"]
        for at_s, kind in faults
    }
    return report


def three_hosts(network: Network) -> dict[str, Any]:
    """Run one model across all hosts."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(3)
    flow.stop(TIMEOUT_S)
    return {"devices": toy_devices(core), **result(flow, [], 0.0)}


def link_cut(network: Network) -> dict[str, Any]:
    """Disconnect a host with a stage, and reconnect it."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    with core.compile_model(model(), "HETERO:TOY.1,NULL.1", CONFIG) as on_second:
        infer(on_second, WAIT_LIMIT_S)
        time.sleep(2)
        network.disconnect(2)
        start_s = time.monotonic()
        short = outcome_of(on_second)
        time.sleep(max(0.0, CUT_S - (time.monotonic() - start_s)))
        network.reconnect(2)
        healed_s = time.monotonic()
        report = recover(flow, [(start_s, "cut"), (healed_s, "healed")])
    return {**report, "short": short}


def one_way_loss(network: Network, drop: Callable[[Network, int], None]) -> dict[str, Any]:
    """Drop all incoming, or all outgoing, traffic of a host with a stage."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    drop(network, 2)
    start_s = time.monotonic()
    time.sleep(CUT_S)
    network.restore_traffic(2)
    return recover(flow, [(start_s, "loss"), (time.monotonic(), "healed")])


def incoming_loss(network: Network) -> dict[str, Any]:
    return one_way_loss(network, Network.drop_incoming)


def outgoing_loss(network: Network) -> dict[str, Any]:
    return one_way_loss(network, Network.drop_outgoing)


def slow_host(network: Network) -> dict[str, Any]:
    """Suspend a host with a stage most of the time, and delay its traffic."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    network.impair(2, 0.0, 0.5)
    time.sleep(2)
    start_s = time.monotonic()
    while time.monotonic() < start_s + CUT_S:
        network.signal(2, signal.SIGSTOP)
        time.sleep(3.0)
        network.signal(2, signal.SIGCONT)
        time.sleep(0.3)
    return recover(flow, [(start_s, "slow"), (time.monotonic(), "normal")])


def lossy_link(network: Network) -> dict[str, Any]:
    """Lose one frame in ten of a host with a stage, and delay and reorder the others."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    start_s = time.monotonic()
    network.impair(2, 0.1, 0.1)
    time.sleep(30)
    return recover(flow, [(start_s, "impaired")])


def flapping_link(network: Network) -> dict[str, Any]:
    """Disconnect and reconnect a host with a stage several times."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    faults = []
    for cut_s in (0.3, 1.0, 3.0, 1.5, 3.0, 5.0, 0.5, 3.0):
        faults.append((time.monotonic(), "cut"))
        network.disconnect(2)
        time.sleep(cut_s)
        network.reconnect(2)
        time.sleep(2)
    return recover(flow, faults)


def head_disconnected_with_requests(network: Network) -> dict[str, Any]:
    """Disconnect the cluster's head while it and the client's host each run a request."""
    # Ray searches the processes, which all hosts share, for its own node, and prefers the head.
    ray.init = partial(ray.init, _node_ip_address=network.address(1))
    core = cluster(network, 2, head=2)
    slow = {"NULL_NODE_TIME_US": 1e6 * WAIT_LIMIT_S, "REQUEST_TIMEOUT_S": WAIT_LIMIT_S}
    models = [core.compile_model(model(), name, slow) for name in ("NULL.0", "NULL.1")]
    requests = [compiled.create_infer_request() for compiled in models]
    for request in requests:
        request.start_async({"x": question(1)})
    start_s = time.monotonic()
    network.disconnect(2)
    errors = []
    for request in requests:
        try:
            request.wait()
        except hetero.HeteroError as error:
            errors.append((type(error).__name__, round(time.monotonic() - start_s, 2)))
    return {"errors": errors}


def head_disconnected_without_requests(network: Network) -> dict[str, Any]:
    """Disconnect the cluster's head temporarily, while requests use other hosts only."""
    ray.init = partial(ray.init, _node_ip_address=network.address(1))
    core = cluster(network, 2, head=2)
    own = next(name for name, node in toy_devices(core).items() if node == "host1")
    flow = start_flow(core, {}, f"HETERO:{own},{own.replace('TOY', 'NULL')}")
    time.sleep(2)
    start_s = time.monotonic()
    network.disconnect(2)
    time.sleep(HEAD_ABSENCE_S)
    network.reconnect(2)
    return recover(flow, [(start_s, "cut")])


def outcome_of(compiled: hetero.CompiledModel) -> tuple[str, float]:
    """Return the outcome of a request with a short timeout, and its duration."""
    start_s = time.monotonic()
    try:
        infer(compiled, SHORT_TIMEOUT_S)
        outcome = "answered"
    except hetero.HeteroError as error:
        outcome = type(error).__name__
    return outcome, round(time.monotonic() - start_s, 2)


def infer(compiled: hetero.CompiledModel, timeout_s: float) -> None:
    """Send one request and wait for its result."""
    compiled.create_infer_request().infer({"x": question(1)}, timeout_s=timeout_s)


def host_killed(network: Network) -> dict[str, Any]:
    """Power off a host with stages."""
    core = cluster(network, 3)
    flow = start_flow(core, {})  # all on the third host
    time.sleep(2)
    start_s = time.monotonic()
    network.power_off(3)
    report = recover(flow, [(start_s, "killed")])
    end_s = time.monotonic() + WAIT_LIMIT_S
    while len(toy_devices(core)) > 2 and time.monotonic() < end_s:
        time.sleep(0.2)
    return {**report, "devices": toy_devices(core)}


def host_added(network: Network) -> dict[str, Any]:
    """A host joins while requests flow, and its devices are used."""
    core = cluster(network, 2)
    places = {**PLACES, "join": "TOY.1", "zero": "NULL.1"}
    flow = start_flow(core, places, "HETERO:TOY.1,NULL.1,TOY.0")
    network.add(3)
    start_ray(network, 3)
    wait_for(core, 3, time.monotonic() + WAIT_LIMIT_S)
    report = recover(flow, [])
    second = start_flow(core, PLACES)
    time.sleep(1)
    second.stop(TIMEOUT_S)
    return {"devices": toy_devices(core), "before": report, "after": result(second, [], 0.0)}


def generation(network: Network) -> dict[str, Any]:
    """Drop one or both directions of traffic of each decoder host during generation."""
    prompts = [[3 + i, 14, 15, 9, 2, 6][i:] for i in range(4)]
    model = hetero.read_decoder(small_decoder(3))
    with hetero.Core("inprocess") as local, local.compile_model(model, "CPU") as whole:
        expected = [list(whole.generate(prompt, TOKENS + 1)) for prompt in prompts]
    core = cluster(network, 3, CPU=1)
    device_of = {row.node: row.name for row in core.device_descriptors if row.plugin == "CPU"}
    hosts = sorted(device_of)
    pins = {f"*_{i}": device_of[host] for i, host in enumerate(hosts)} | {
        "sample": device_of[hosts[-1]]
    }
    reports = {}
    faults = (Network.disconnect, Network.drop_incoming, Network.drop_outgoing)
    for host, start_fault in [
        *product((2, 3), faults),
        (1, Network.disconnect),
        (1, Network.drop_incoming),
    ]:
        name = f"host{host} {start_fault.__name__}"
        with (
            core.compile_model(
                model, f"HETERO:{','.join(device_of.values())}", affinity=pins
            ) as compiled,
            ThreadPoolExecutor(len(prompts)) as pool,
        ):
            first_tokens, fault = Barrier(len(prompts) + 1), Barrier(len(prompts) + 1)

            def pause(first_tokens: Barrier = first_tokens, fault: Barrier = fault) -> None:
                first_tokens.wait(WAIT_LIMIT_S)
                fault.wait(WAIT_LIMIT_S)

            futures = [
                pool.submit(timed_tokens, compiled, prompt, TOKENS, pause) for prompt in prompts
            ]
            first_tokens.wait(WAIT_LIMIT_S)
            stages = sorted({stage.device for stage in compiled.subgraphs})
            start_fault(network, host)
            fault.wait(WAIT_LIMIT_S)
            time.sleep(FAULT_S)
            network.reconnect(
                host
            ) if start_fault is Network.disconnect else network.restore_traffic(host)
            results = [future.result() for future in futures]
        reports[name] = {
            "stages": stages,
            "is_correct": [tokens for tokens, _ in results] == expected,
            "gap_s": round(max(span for _, spans in results for span in spans), 2),
        }
        wait_for(core, 3, time.monotonic() + WAIT_LIMIT_S)
        time.sleep(5)  # until devices are reachable again
    return reports


SCENARIOS: Final[dict[str, Callable[[Network], dict[str, Any]]]] = {
    scenario.__name__: scenario
    for scenario in (
        three_hosts,
        link_cut,
        incoming_loss,
        outgoing_loss,
        slow_host,
        lossy_link,
        flapping_link,
        host_killed,
        host_added,
        head_disconnected_with_requests,
        head_disconnected_without_requests,
        generation,
    )
}


def main(network: str, scenario: str) -> None:
    report = SCENARIOS[scenario](Network(network))
    os.write(1, json.dumps(report).encode() + b"\n")
    os._exit(0)  # skips Ray's shutdown, which may hang after a loss of hosts


if __name__ == "__main__":
    main(*sys.argv[1:])
