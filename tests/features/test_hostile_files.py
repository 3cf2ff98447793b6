"""Hostile files: endless, compressed to gigabytes, deeply nested, with links to other files."""

import contextlib
import http.server
import io
import json
import os
import sys
import threading
import zipfile

import numpy as np
import onnx
import pytest
from prometheus_client.metrics_core import Metric

from hetero.affinity.pins import load_affinity
from hetero.apps.generate.tokenizer import Tokenizer
from hetero.apps.serve.model_folder import ModelOptions, read_options
from hetero.apps.simulate.arrivals import read_arrivals
from hetero.apps.simulate.fleet import read_fleet
from hetero.cli import inputs
from hetero.devices.errors import AffinityError, ArgumentError, PlanError
from hetero.observe.metrics_server import read_text, write_text
from hetero.planning.cost.cost_file import FORMAT, VERSION, read_costs

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
)


def write_sparse(path):
    with path.open("wb") as file:
        file.truncate(2**40)


KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terabyte": write_sparse,
    "deep": lambda path: path.write_text("[" * 20_000),
    "digits": lambda path: path.write_text("9" * 5_000),
    "infinity": lambda path: path.write_text(
        json.dumps({"format": FORMAT, "version": VERSION, "measured_at": ""})[:-1]
        + ', "model": {"name": "m", "hash": "h", "shapes": {"x": [Infinity]}}, "devices": {},'
        ' "transfers": [], "client": {}, "missing": {}, "interrupted": false}'
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("read", "name", "error"),
    [
        (read_costs, "c.json", PlanError),
        (load_affinity, "a.json", AffinityError),
        (load_affinity, "a.yaml", AffinityError),
        (lambda path: read_fleet(path, None), "cluster.yaml", ArgumentError),
        (lambda path: read_options(path, ModelOptions()), "hetero.yaml", ArgumentError),
        (lambda path: read_arrivals(str(path)), "arrivals.txt", ArgumentError),
        (lambda path: Tokenizer(path), "tokenizer.json", ArgumentError),
    ],
)
def test_hostile_files_are_refused(read, name, error, kind, tmp_path):
    KINDS[kind](tmp_path / name)
    with pytest.raises(error, match=name):
        read(tmp_path / name)


def write_zip_bomb(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**23,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(header.getvalue())
        for _ in range(2**5):
            entry.write(bytes(2**20))


def write_truncated(path):
    np.save(path, np.zeros(4, np.float32))
    path.write_bytes(path.read_bytes()[:70])


def write_huge(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (2**58,)}
        )


def write_external_tensor(path):
    np.float32([7, 7, 7, 7]).tofile(path.with_name("secret"))
    tensor = onnx.TensorProto(name="x", dims=[4], data_type=1, data_location=1)
    tensor.external_data.add(key="location", value="secret")
    path.write_bytes(tensor.SerializeToString())


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("x.npz", write_zip_bomb, "unpacks to"),
        ("x.npy", write_truncated, "is not a .npy file"),
        ("x.npy", write_huge, "is not a .npy file"),
        ("x.pb", write_external_tensor, "external file 'secret'"),
    ],
)
def test_hostile_input_files_are_refused(shell, name, write, message, tmp_path, monkeypatch):
    onnx.save_model(MODEL, tmp_path / "m.onnx")
    write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "_MAX_UNPACKED_NBYTES", 2**20)
    result = shell("run m.onnx -d CPU", "-i", name)
    assert result.code == 2, result.err
    assert message in result.err


def test_endless_http_response_is_refused(shell, monkeypatch):
    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"# " + b"x" * 2**16 + b"\n")

        def log_message(self, *_):
            pass

    monkeypatch.setattr(sys.modules["hetero.cli.top"], "_RESPONSE_NBYTES", 2**22)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = shell(f"top {server.server_port} --once", ray=True)
        server.shutdown()
    assert result.code == 1
    assert "the response does not end" in result.err


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a\rb", "a\x85b", "a\u2028b", "a\\", "a} 1"])
def test_model_names_in_metrics_are_unescaped(name):
    metric = Metric("hetero_x", "help", "gauge")
    metric.add_sample("hetero_x", {"model": name}, 1.0)
    text = write_text([metric])
    assert list(read_text(text)) == [("hetero_x", {"model": name}, 1.0)]
