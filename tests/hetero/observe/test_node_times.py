"""Node times of runs over all subgraphs: runtime model and profiling info."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from hetero.devices.model.model import Model
from tests.support.models import branches
from tests.support.plans import replica_config

DEVICES = "HETERO:CPU,ORT"
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Two subgraphs on different devices.
PINS = {"matmul": "ORT", "relu": "ORT", "*": "CPU"}


def subgraphs_with_times(model: Model) -> set[str]:
    """Return the subgraphs of a runtime model in which a node took time."""
    times = {node.name: node.metadata["execTimeMcs"] for node in model.nodes}
    return {
        name.partition(":")[0]
        for name, time in times.items()
        if time != "not_executed" and float(time) > 0
    }


@pytest.mark.parametrize("asynchronous", [False, True], ids=["request", "queue"])
def test_profiled_runs_time_the_nodes_of_every_subgraph(core, asynchronous):
    config = {"PERF_COUNT": True}
    with core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity=PINS) as compiled:
        assert subgraphs_with_times(compiled.get_runtime_model()) == set()
        if asynchronous:
            queue = hetero.AsyncInferQueue(compiled, jobs=2)
            queue.start_async(X)
            queue.wait_all()
        else:
            compiled(X)
        assert subgraphs_with_times(compiled.get_runtime_model()) == {"subgraph0", "subgraph1"}


def test_unprofiled_runs_have_no_node_times(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        compiled(X)
        assert subgraphs_with_times(compiled.get_runtime_model()) == set()


def test_runtime_model_covers_every_variant(core, tmp_path):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 2e-3}, PERF_COUNT=True)
    with core.compile_model(branches(), DEVICES, config) as compiled:
        assert len(compiled.placements) == 2
        for _ in range(4):
            compiled(X)
        runtime = compiled.get_runtime_model()
        assert subgraphs_with_times(runtime) == {f"subgraph{s.index}" for s in compiled.subgraphs}
        for subgraph in compiled.subgraphs:
            rows = [n for n in runtime.nodes if n.name.startswith(f"subgraph{subgraph.index}:")]
            node_names = {o for n in rows for o in n.metadata["originalLayersNames"].split(",")}
            assert node_names == set(subgraph.node_names)
            assert {"x"} <= {name for n in rows for name in n.inputs}
            assert {"y"} <= {name for n in rows for name in n.outputs}


def test_profiling_info_adds_up_over_stages(core):
    config = {"PERF_COUNT": True}
    with core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity=PINS) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        rows = [row for row in request.profiling_info if row.node_name[0].isdigit()]
        runs = compiled.submit({"x": X}).future.result().stage_timings
    assert {row.status for row in rows} == {"EXECUTED"}
    assert 0 < sum(row.real_time.total_seconds() for row in rows[:4]) <= request.latency / 1000
    for run in runs:
        assert 0 < run.infer_s <= run.run_s
        assert min(run.upload_s, run.download_s) >= 0
