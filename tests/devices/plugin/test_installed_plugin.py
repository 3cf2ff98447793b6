"""A plugin in a separately installed package: discovery, conformance and use, also on Ray."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hetero.examples import third_party_plugin

EXAMPLE = Path(third_party_plugin.__file__)
DIST = "acme_dense-1.0.dist-info"
FILES = {
    "acme_dense.py": EXAMPLE.read_text(),
    f"{DIST}/METADATA": "Metadata-Version: 2.1\nName: acme-dense\nVersion: 1.0\n",
    f"{DIST}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{DIST}/entry_points.txt": "[hetero.plugins]\nDENSE = acme_dense:DensePlugin\n",
}
PROGRAM = """
import sys, numpy, hetero
from onnx import parser
with hetero.Core(sys.argv[1]) as core:
    row = next(row for row in core.device_descriptors if row.name == "DENSE")
    assert row.error is None, row.error
    model = core.read_model(parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        'g (float[2] x) => (float[2] y) {h = Relu(x) y = Exp(h)}'
    ))
    compiled = core.compile_model(model, "HETERO:DENSE,CPU")
    y = compiled(numpy.float32([-1, 0]))[0]
    print([s.device for s in compiled.subgraphs], y.tolist(), core.get_versions("DENSE"))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a function that runs Python with the package installed."""
    folder = tmp_path_factory.mktemp("package")
    wheel, target = folder / "acme_dense-1.0-py3-none-any.whl", folder / "installed"
    names = "".join(f"{name},,\n" for name in (*FILES, f"{DIST}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (*FILES.items(), (f"{DIST}/RECORD", names)):
            archive.writestr(name, text)
    if importlib.util.find_spec("pip"):
        options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
        install = [sys.executable, "-m", "pip", "install", *options, "--target", target, wheel]
        subprocess.run(install, check=True, timeout=300)
    else:  # without pip: extract the wheel as pip would
        zipfile.ZipFile(wheel).extractall(target)

    def run(*arguments):
        path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    return run


@pytest.mark.slow  # test_conformance.py runs the same plugin without installation
def test_installed_plugin_passes_conformance_suite(python):
    passes, _, checks = (
        python("-m", "hetero", "check-device", "DENSE").partition("passes ")[2].split()[:3]
    )
    assert passes == checks
    assert int(passes) > 30


@pytest.mark.parametrize(
    "executor",
    ["inprocess", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])],
)
def test_installed_plugin_runs_part_of_a_model(python, executor):
    output = python("-c", PROGRAM, executor)
    assert output.strip() == "['DENSE', 'CPU'] [1.0, 1.0] {'DENSE': '0'}"
