"""A program for `test_hosts`: the client, on the first of three hosts.

``python -m tests.hosts.driver NETWORK SCENARIO``. Prints what it found as JSON.
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
#: What whoever waits waits at most.
PATIENCE_S: Final = 120.0
#: Deadline of requests of a flow, which outlasts the cut.
TIMEOUT_S: Final = 60.0
CUT_S: Final = 20.0
#: Seconds that a head may be cut off while requests need nothing of it.
AWAY_S: Final = 15.0
#: Deadline of the one request that is asked to end while the link is cut.
SHORT_S: Final = 3.0
#: Tokens of a text in whose middle a host is cut off, and seconds until it is back.
TOKENS: Final = 40
HEALED_S: Final = 10.0
PLUGINS: Final = ("tests.scheduler.plugins:ToyPlugin",)


def start_ray(network: Network, host: int, head: int = 1) -> None:
    """Start a host's part of the cluster, as one does on a machine."""
    address = f"{network.address(head)}:{PORT}"
    where = ["--head", f"--port={PORT}"] if host == head else [f"--address={address}"]
    network.start(
        host,
        [
            str(Path(sys.executable).with_name("ray")),
            "start",
            *where,
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
    """Start Ray on so many hosts, the head first; return a Core that has all their devices.

    `devices`: what each has besides a TOY and a NULL.
    """
    end_s = time.monotonic() + PATIENCE_S
    first = (head, 1) if head != 1 else (1,)  # a client joins by the Ray of its own host
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
        except hetero.ClusterError:  # it is on its way
            core.close()
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
    for host in range(2, hosts + 1):  # one by one: devices are numbered as hosts come
        if host not in first:
            start_ray(network, host, head)
        wait_for(core, host, end_s)
    return core


def wait_for(core: hetero.Core, hosts: int, end_s: float) -> None:
    """Wait until so many hosts offer their devices."""
    while len(toys(core)) < hosts:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{hosts} hosts wanted, devices are {core.available_devices}")
        time.sleep(0.2)


def toys(core: hetero.Core) -> dict[str, str]:
    """Return the toy devices and the hosts that they are on."""
    return {row.name: row.node for row in core.device_descriptors if row.plugin == "TOY"}


def start_flow(core: hetero.Core, places: Mapping[str, str], devices: str = DEVICES) -> Flow:
    """Let requests flow."""
    compiled = core.compile_model(model(), devices, CONFIG, affinity=places)
    ask(compiled, PATIENCE_S)
    return Flow(compiled, window=8, rate=50, timeout_s=TIMEOUT_S)


def story(flow: Flow, faults: list[tuple[float, str]]) -> dict[str, Any]:
    """Wait for the flow to recover for a while, end it, tell what became of it."""
    time.sleep(10)
    stopped_s = time.monotonic()
    flow.stop(TIMEOUT_S + 10)
    found = result(flow, faults, time.monotonic())
    # Later ones are no gaps: nothing is asked any more, and the last answers may be on a slow link.
    ends = [*sorted(end_s for _, end_s in flow.answers if end_s < stopped_s), stopped_s]
    gaps = [(later - end_s, later) for end_s, later in pairwise(ends)]
    found["longest_gaps_s"] = {
        kind: round(max((gap for gap, later_s in gaps if later_s > at_s), default=inf), 3)
        for at_s, kind in faults
    }
    found["recovery_s"] = {
        kind: result(flow, [(at_s, kind)], time.monotonic())["recovery_max_s"]
        for at_s, kind in faults
    }
    return found


def everywhere(network: Network) -> dict[str, Any]:
    """One model over all hosts."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(3)
    flow.stop(TIMEOUT_S)
    return {"devices": toys(core), **result(flow, [], 0.0)}


def cut(network: Network) -> dict[str, Any]:
    """The link of a host that has a stage is cut, and healed."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    with core.compile_model(model(), "HETERO:TOY.1,NULL.1", CONFIG) as on_second:
        ask(on_second, PATIENCE_S)
        time.sleep(2)
        network.cut(2)
        begun_s = time.monotonic()
        short = ended(on_second)
        time.sleep(max(0.0, CUT_S - (time.monotonic() - begun_s)))
        network.heal(2)
        healed_s = time.monotonic()
        found = story(flow, [(begun_s, "cut"), (healed_s, "healed")])
    return {**found, "short": short}


def half_cut(network: Network, lose: Callable[[Network, int], None]) -> dict[str, Any]:
    """Nothing reaches a host that has a stage, or nothing that it sends arrives."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    lose(network, 2)
    begun_s = time.monotonic()
    time.sleep(CUT_S)
    network.restore(2)
    return story(flow, [(begun_s, "half cut"), (time.monotonic(), "healed")])


def deaf(network: Network) -> dict[str, Any]:
    return half_cut(network, Network.deafen)


def mute(network: Network) -> dict[str, Any]:
    return half_cut(network, Network.mute)


def slow(network: Network) -> dict[str, Any]:
    """A host that has a stage mostly stands still, and its link delays what goes by it."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    network.spoil(2, 0.0, 0.5)
    time.sleep(2)
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + CUT_S:
        network.signal(2, signal.SIGSTOP)
        time.sleep(3.0)
        network.signal(2, signal.SIGCONT)
        time.sleep(0.3)
    return story(flow, [(begun_s, "slow"), (time.monotonic(), "well")])


def lossy(network: Network) -> dict[str, Any]:
    """The link of a host that has a stage loses one frame in ten, and delays and reorders them."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    begun_s = time.monotonic()
    network.spoil(2, 0.1, 0.1)
    time.sleep(30)
    return story(flow, [(begun_s, "spoilt")])


def flapping(network: Network) -> dict[str, Any]:
    """The link of a host that has a stage is cut again and again, and healed each time."""
    core = cluster(network, 3)
    flow = start_flow(core, PLACES)
    time.sleep(2)
    faults = []
    for cut_s in (0.3, 1.0, 3.0, 1.5, 3.0, 5.0, 0.5, 3.0):
        faults.append((time.monotonic(), "cut"))
        network.cut(2)
        time.sleep(cut_s)
        network.heal(2)
        time.sleep(2)
    return story(flow, faults)


def head_cut(network: Network) -> dict[str, Any]:
    """The link of the cluster's head is cut while a request is on its host, and on the client's."""
    # Ray looks for its own among the processes, which these hosts share, and prefers the head.
    ray.init = partial(ray.init, _node_ip_address=network.address(1))
    core = cluster(network, 2, head=2)
    slow = {"NULL_NODE_TIME_US": 1e6 * PATIENCE_S, "REQUEST_TIMEOUT_S": PATIENCE_S}
    models = [core.compile_model(model(), name, slow) for name in ("NULL.0", "NULL.1")]
    requests = [compiled.create_infer_request() for compiled in models]
    for request in requests:
        request.start_async({"x": question(1)})
    begun_s = time.monotonic()
    network.cut(2)
    told = []
    for request in requests:
        try:
            request.wait()
        except hetero.HeteroError as error:
            told.append((type(error).__name__, round(time.monotonic() - begun_s, 2)))
    return {"told": told}


def head_away(network: Network) -> dict[str, Any]:
    """The link of the cluster's head is cut for a while, and requests need nothing of it."""
    ray.init = partial(ray.init, _node_ip_address=network.address(1))
    core = cluster(network, 2, head=2)
    own = next(name for name, node in toys(core).items() if node == "host1")
    flow = start_flow(core, {}, f"HETERO:{own},{own.replace('TOY', 'NULL')}")
    time.sleep(2)
    begun_s = time.monotonic()
    network.cut(2)
    time.sleep(AWAY_S)
    network.heal(2)
    return story(flow, [(begun_s, "cut")])


def ended(compiled: hetero.CompiledModel) -> tuple[str, float]:
    """Return how a request with a short deadline ended, and after how long."""
    begun_s = time.monotonic()
    try:
        ask(compiled, SHORT_S)
        how = "answered"
    except hetero.HeteroError as error:
        how = type(error).__name__
    return how, round(time.monotonic() - begun_s, 2)


def ask(compiled: hetero.CompiledModel, timeout_s: float) -> None:
    """Send one request and wait for its answer."""
    compiled.create_infer_request().infer({"x": question(1)}, timeout_s=timeout_s)


def killed(network: Network) -> dict[str, Any]:
    """A host that has stages loses its power."""
    core = cluster(network, 3)
    flow = start_flow(core, {})  # all on the third host
    time.sleep(2)
    begun_s = time.monotonic()
    network.kill(3)
    found = story(flow, [(begun_s, "killed")])
    end_s = time.monotonic() + PATIENCE_S
    while len(toys(core)) > 2 and time.monotonic() < end_s:
        time.sleep(0.2)
    return {**found, "devices": toys(core)}


def added(network: Network) -> dict[str, Any]:
    """A host joins while requests flow, and its devices are used."""
    core = cluster(network, 2)
    places = {**PLACES, "join": "TOY.1", "zero": "NULL.1"}
    flow = start_flow(core, places, "HETERO:TOY.1,NULL.1,TOY.0")
    network.add(3)
    start_ray(network, 3)
    wait_for(core, 3, time.monotonic() + PATIENCE_S)
    found = story(flow, [])
    second = start_flow(core, PLACES)
    time.sleep(1)
    second.stop(TIMEOUT_S)
    return {"devices": toys(core), "before": found, "with it": result(second, [], 0.0)}


def texts(network: Network) -> dict[str, Any]:
    """Each host that has layers of a decoder is cut off, one way or both, in mid-sentence."""
    prompts = [[3 + i, 14, 15, 9, 2, 6][i:] for i in range(4)]
    model = hetero.read_decoder(small_decoder(3))
    with hetero.Core("inprocess") as here, here.compile_model(model, "CPU") as whole:
        want = [list(whole.generate(prompt, TOKENS + 1)) for prompt in prompts]
    core = cluster(network, 3, CPU=1)
    on = {row.node: row.name for row in core.device_descriptors if row.plugin == "CPU"}
    hosts = sorted(on)
    pins = {f"*_{i}": on[host] for i, host in enumerate(hosts)} | {"sample": on[hosts[-1]]}
    found = {}
    ways = (Network.cut, Network.deafen, Network.mute)
    for host, lose in [*product((2, 3), ways), (1, Network.cut), (1, Network.deafen)]:
        name = f"host{host} {lose.__name__}"
        with (
            core.compile_model(model, f"HETERO:{','.join(on.values())}", affinity=pins) as compiled,
            ThreadPoolExecutor(len(prompts)) as pool,
        ):
            begun, lost = Barrier(len(prompts) + 1), Barrier(len(prompts) + 1)

            def wait(begun: Barrier = begun, lost: Barrier = lost) -> None:
                begun.wait(PATIENCE_S)
                lost.wait(PATIENCE_S)

            told = [pool.submit(timed_tokens, compiled, prompt, TOKENS, wait) for prompt in prompts]
            begun.wait(PATIENCE_S)
            stages = sorted({stage.device for stage in compiled.subgraphs})
            lose(network, host)
            lost.wait(PATIENCE_S)
            time.sleep(HEALED_S)
            network.heal(host) if lose is Network.cut else network.restore(host)
            ended = [text.result() for text in told]
        found[name] = {
            "stages": stages,
            "right": [text for text, _ in ended] == want,
            "gap_s": round(max(span for _, spans in ended for span in spans), 2),
        }
        wait_for(core, 3, time.monotonic() + PATIENCE_S)
        time.sleep(5)  # until devices are heard again
    return found


SCENARIOS: Final[dict[str, Callable[[Network], dict[str, Any]]]] = {
    scenario.__name__: scenario
    for scenario in (
        *(everywhere, cut, deaf, mute, slow, lossy, flapping, killed, added, head_cut, head_away),
        texts,
    )
}


def main(network: str, scenario: str) -> None:
    found = SCENARIOS[scenario](Network(network))
    os.write(1, json.dumps(found).encode() + b"\n")
    os._exit(0)  # leaving a cluster that lost hosts is not what is asked here


if __name__ == "__main__":
    main(*sys.argv[1:])
