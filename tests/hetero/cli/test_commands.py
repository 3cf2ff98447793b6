"""The commands on small models: documents, files, help examples and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from importlib import metadata

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from hetero.cli.help_examples import EXAMPLES
from hetero.devices.model.reader import read_model
from tests.support.command_line import ROOT, start_endless_command
from tests.support.models import branches_output
from tests.support.stateful_models import running_sum

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: One node that OpenVINO runs, one that it runs with checks, one that it refuses.
SUMS = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64[2] i) => (float[2] y, '
    "float[2] z, double[2] d) {y = Neg(x) z = Cast<to = 1>(i) d = Cast<to = 11>(x)}"
)
SPLIT = ("-d", "HETERO:ORT,CPU", "-a", "op:Tanh=CPU")


def test_devices_lists_names_and_threads(shell):
    rows = shell("devices --json --devices ORT=2").document["devices"]
    names = {"CPU", "ORT.0", "ORT.1", "NULL"}
    assert names <= {row["name"] for row in rows}
    assert all(row["threads"] >= 1 and not row["error"] for row in rows if row["name"] in names)
    assert "ONNX Runtime" in shell("devices").out


def test_devices_all_shows_install_commands(shell):
    rows = {row["name"]: row for row in shell("devices --all --json").document["devices"]}
    for name, install in (
        ("ORT_CUDA", "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"),
        ("ORT_MLX", "pip install onnxruntime-ep-mlx"),  # in addition to onnxruntime
    ):
        assert name.removeprefix("ORT_") in rows[name]["error"].upper()
        assert rows[name]["install"] == install
    assert rows["CPU"]["install"] is None
    assert "ORT_CUDA" not in {r["name"] for r in shell("devices --json").document["devices"]}
    assert "onnxruntime-gpu" in shell("devices --all").out.replace("\n", "")


def test_query_shows_the_device_of_each_node(shell, model):
    result = shell("query", model, *SPLIT)
    assert result.code == 0
    for word in ("branches", "ORT", "CPU", "Tanh"):
        assert word in result.out
    nodes = shell("query --json", model, *SPLIT).document["nodes"]
    placed = {node["name"]: node["device"] for node in nodes}
    assert placed == dict.fromkeys(placed, "ORT") | {"tanh": "CPU"}


def test_compile_writes_valid_subgraph_models(shell, model, tmp_path):
    folder = tmp_path / "new" / "parts"
    result = shell("compile --json", model, *SPLIT, "--subgraphs-dir", folder)
    assert result.code == 0
    assert sorted(result.document["files"]) == sorted(map(str, folder.iterdir()))
    assert len(result.document["files"]) == len(result.document["subgraphs"]) == 3
    for file in folder.iterdir():
        onnx.checker.check_model(onnx.load(file), full_check=True)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pb"])
def test_run_reads_input_files_and_writes_outputs(shell, model, tmp_path, suffix):
    input_path, output_path = tmp_path / f"x{suffix}", tmp_path / "made.npz"
    if suffix == ".pb":
        onnx.save_tensor(numpy_helper.from_array(X, "any"), str(input_path))
    else:
        np.save(input_path, X) if suffix == ".npy" else np.savez(input_path, x=X)
    assert shell("run", model, *SPLIT, "--input", input_path, "--output", output_path).code == 0
    with np.load(output_path) as outputs:
        np.testing.assert_allclose(outputs["y"], branches_output(X), rtol=1e-6)
    assert shell("run", model, *SPLIT, "--input", f"x={input_path}").code == 0


@pytest.mark.slow
def test_run_explains_fallbacks_and_options_against_them(shell, tmp_path):
    pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    path = tmp_path / "sums.onnx"
    onnx.save(onnx.parser.parse_model(SUMS), path)
    result = shell(f"run {path} -d HETERO:OV,CPU")
    line = (
        "OV.CPU refused 2 nodes; fallback to CPU; for example 'z' (Cast): 'i' is tensor(int64): "
        "OpenVINO computes int64 in 32 bits; -c OV_NARROW_INTEGERS=CHECKED keeps 1 on OV.CPU"
    )
    assert line in result.out.replace("\n", " ")
    checked = "-d HETERO:OV,CPU -c OV_NARROW_INTEGERS=CHECKED"
    document = shell(f"run --json {path} {checked}").document
    assert document["left"].startswith(
        "OV.CPU refused 1 node; fallback to CPU; for example 'd' (Cast): 'd' is "
    )
    assert [s["device"] for s in document["subgraphs"]].count("OV.CPU") == 1
    assert shell(f"run --json {path} -d HETERO:CPU,OV").document["left"] == ""


def test_run_uses_shapes_for_dynamic_dimensions(shell, model):
    (output,) = shell("run --json --shape x=7,3", model).document["outputs"]
    assert output == {"name": "y", "dtype": "float32", "shape": [7, 4]}


def test_model_with_states_works_in_every_command(shell, tmp_path):
    path, sums = tmp_path / "sum.onnx", running_sum()
    sums.metadata_props.add(key="hetero.states", value='{"before": "after"}')
    onnx.save_model(sums, path)
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    result = shell(
        "run", path, "-d", "CPU", "-i", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "y.npz"
    )
    assert result.code == 0
    with np.load(tmp_path / "y.npz") as outputs:
        assert {name: list(y) for name, y in outputs.items()} == {"y": [2, 2, 2]}
    assert "no input before; expected x" in shell("run", path, "--shape", "before=3").err
    assert shell("bench", path, "-d", "CPU", "--seconds", "0.1").code == 0
    assert shell("compare", path, "-d", "ORT,CPU").code == 0


@pytest.mark.slow
def test_run_compares_a_light_model_with_onnxs_reference(shell, monkeypatch):
    match = shell("run light:shufflenet --json", *("-d", "HETERO:ORT,CPU", "-a", "op:Concat=CPU"))
    assert match.code == 0
    assert match.document["check"]["matches"] is True
    assert "matches onnx's expected output" in shell("run light:shufflenet -d ORT").out
    wrong = [np.zeros((1, 1000), np.float32)]
    # The package's attribute `run` is the command, which hides the module.
    module = sys.modules["hetero.cli.run"]
    monkeypatch.setattr(module, "light_model_outputs", lambda name: wrong)
    mismatch = shell("run light:shufflenet -d ORT")
    assert mismatch.code == 1
    assert "DIFFERS FROM" in mismatch.out


def test_config_options_reach_the_devices(shell, model):
    options = ("--devices", "ORT=2", "-d", "HETERO:ORT.0,ORT.1", "-a", "tanh=ORT.1")
    result = shell("run --json -c PERF_COUNT=YES -c ORT.1.NUM_STREAMS=2", model, *options)
    assert result.code == 0
    assert {s["device"] for s in result.document["subgraphs"]} == {"ORT.0", "ORT.1"}


def test_bench_reports_requests_and_stages(shell, model):
    result = shell("bench --json -n 12 -j 3 -t 20", model, *SPLIT)
    assert result.code == 0
    assert result.document["one_at_a_time"]["requests"] == 12
    in_flight = result.document["in_flight"]
    assert (in_flight["jobs"], in_flight["requests"]) == (3, 12)
    percentiles = [in_flight["latency_s"][p] for p in ("50", "90", "95", "99")]
    assert percentiles == sorted(percentiles)
    assert [row["device"] for row in in_flight["stages"]] == ["ORT", "CPU", "ORT"]
    assert "per second" in shell("bench -n 2 -j 1", model, *SPLIT).out


@pytest.mark.parametrize("command", ["run", "bench -n 2"])
def test_subgraph_sizes_are_those_of_the_inputs(shell, model, command):
    document = shell(f"{command} --json --shape x=7,3", model, "-d", "CPU").document
    (subgraph,) = document["subgraphs"]
    assert (subgraph["in_nbytes"], subgraph["out_nbytes"]) == (7 * 3 * 4, 7 * 4 * 4)


def test_plugin_in_the_current_folder_is_found(shell, model, tmp_path, monkeypatch):
    file = ROOT / "hetero" / "examples" / "third_party_plugin.py"
    (tmp_path / "plugin_of_mine.py").write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    plugin = ("--plugin", "plugin_of_mine:DensePlugin", "-d", "HETERO:DENSE,CPU")
    result = shell("run --json", model, *plugin)
    assert {s["device"] for s in result.document["subgraphs"]} == {"DENSE", "CPU"}


def test_model_without_nodes_runs(shell, tmp_path):
    path = tmp_path / "empty.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> empty (float[2] x) => (float[2] x) {}'
    onnx.save_model(onnx.parser.parse_model(text), path)
    for line in ("run", "bench -n 2", "query"):
        assert shell(line, path).code == 0


def test_version_is_the_packages(shell):
    assert metadata.version("hetero") in shell("--version", ray=True).out


# tests/scheduler/ray/test_pool.py covers the pool commands, which leave a Ray cluster running.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in ("simulate", "bench") else ())
        for n in EXAMPLES
        if n not in ("profile", "plan", "top") and not n.startswith("pool")
    ],
)
def test_help_example_runs(shell, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text = shell(f"{name} --help", ray=True).out
    for line in EXAMPLES[name]:
        assert line in text
        program, command, *_ = line.split()
        if program == "python":
            subprocess.run([sys.executable, *line.split()[1:]], check=True, timeout=300)
            continue
        assert program == "hetero"
        result = shell(
            line.removeprefix("hetero "),
            ray=command in ("inspect", "cache", "probe", "check-device", "doctor"),
        )
        assert result.code == 0, result.err


def test_bench_runs_at_least_once(shell, model):
    document = shell("bench --json -j 1 -t 1e-9 -d CPU", model).document
    assert document["in_flight"]["requests"] == 1


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("run", signal.SIGINT, 130),
        pytest.param("run", signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param("run", signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param("bench", signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_interrupt_ends_the_process_at_once(command, number, code, tmp_path):
    process = start_endless_command(command, tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.strip()) == (code, "", "hetero: interrupted")


#: A sitecustomize module: the process signals itself when it first imports numpy.
SIGNAL_DURING_IMPORT = """
import os, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
"""
SIGNAL_AT_EXIT = """
import atexit, os, signal, sys
from hetero.scheduler.processes.process_end import run_and_exit

def program():
    atexit.register(os.kill, os.getpid(), int(sys.argv[1]))

run_and_exit(program)
"""


EXIT_CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.sampled(9, "number", "program")
@pytest.mark.parametrize(("number", "code"), EXIT_CODES)
@pytest.mark.parametrize(
    "program", [["-c", "from hetero.__main__ import program; program()"], ["-m", "hetero"]]
)
def test_signal_during_import_prints_no_traceback(program, number, code, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_DURING_IMPORT.format(number=int(number)))
    result = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "hetero: interrupted\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [EXIT_CODES[0], *(pytest.param(*end, marks=pytest.mark.slow) for end in EXIT_CODES[1:])],
)
def test_signal_at_exit_prints_no_traceback(number, code):
    result = subprocess.run(
        [sys.executable, "-c", SIGNAL_AT_EXIT, str(int(number))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


@pytest.mark.slow
def test_background_job_ends_on_sigterm(tmp_path):
    """Shells start background jobs with SIGINT ignored, so that SIGTERM must not rely on it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        + SIGNAL_DURING_IMPORT.format(number=int(signal.SIGINT))
    )
    process = start_endless_command("run", tmp_path)
    process.terminate()
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err.strip()) == (143, "")


@pytest.mark.slow
def test_forked_process_ends_on_sigterm_silently():
    program = (
        "import os, signal, time; from hetero.cli.signals import handle_signals; handle_signals()\n"
        "there, here = os.pipe()\n"
        "child = os.fork()\n"
        "child or os.write(here, b'!')\n"
        "while not child: time.sleep(0.05)\n"
        "os.read(there, 1)  # before, Python drops what comes\n"
        "os.kill(child, signal.SIGTERM); print(os.waitpid(child, 0)[1])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.stdout, result.stderr) == (f"{int(signal.SIGTERM)}\n", "")


@pytest.mark.parametrize("by_variable", [False, True])
def test_cache_option_reuses_the_compiled_model(shell, model, tmp_path, monkeypatch, by_variable):
    folder = tmp_path / "cache"
    options: tuple[object, ...] = () if by_variable else ("--cache", folder)
    if by_variable:
        monkeypatch.setenv("HETERO_CACHE_DIR", str(folder))
    first = shell("compile --json", model, *SPLIT, *options)
    assert (first.code, first.document["loaded_from_cache"]) == (0, False)
    assert first.document["cache_saved_s"] is None
    for command in ("compile", "run", "bench -n 2"):
        result = shell(f"{command} --json", model, *SPLIT, *options)
        assert result.code == 0
        assert re.search(r"loaded from the cache in \d+ ms \(\d+\.\d s saved\)", result.err), (
            result.err
        )
        assert result.document["loaded_from_cache"] is True
        assert 0 <= result.document["cache_saved_s"] < first.document["compile_s"]


def test_inspect_shows_what_compiled_a_blob(shell, model, tmp_path):
    blob = tmp_path / "model.hetero"
    shell("compile -c ORT.INFERENCE_NUM_THREADS=1", "-o", blob, model, *SPLIT)
    document = shell("inspect --json", blob, ray=True).document
    assert set(document["devices"]) == {"ORT", "CPU"}
    for record in document["devices"].values():
        assert all(record[key] for key in ("plugin", "version", "fingerprint"))
    assert document["content_hash"] == read_model(model).content_hash
    written = datetime.fromisoformat(document["written"])
    assert written.timestamp() == pytest.approx(blob.stat().st_mtime, abs=1)
    text = shell("inspect", blob, ray=True).out.replace("\n", "")
    for part in (document["written"], document["content_hash"], "ORT.INFERENCE_NUM_THREADS=1"):
        assert part in text
