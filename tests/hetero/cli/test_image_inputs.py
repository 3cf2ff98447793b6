"""Image inputs and the options --mean, --scale, --layout and --color."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from hetero.devices.plugin.install_command import install_command
from tests.support import preprocess_formulas as formulas
from tests.support.command_line import Shell
from tests.support.models import branches
from tests.support.preprocess_cases import model, picture

PIXELS = picture((13, 18, 3))


@pytest.fixture
def cat(tmp_path):
    path = tmp_path / "cat.png"
    Image.fromarray(PIXELS).save(path)
    return path


def save_model(tmp_path: Path, *shape: Any) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(shape), path)
    return path


def run_model(shell: Shell, tmp_path: Path, *line: object) -> np.ndarray:
    file = tmp_path / "out.npz"
    result = shell("run", *line, "-o", file)
    assert result.code == 0, result.err
    values: np.ndarray = np.load(file)["y"]
    return values


@pytest.mark.parametrize("shape", [(1, 3, 7, 22), (1, 7, 22, 3), (3, 7, 22), ("batch", 3, 7, 22)])
@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_image_is_resized_and_normalised(shell, tmp_path, cat, shape, color):
    options = ("--color", color, "--mean", "120,110,100", "--scale", "x=2")
    output = run_model(
        shell,
        tmp_path,
        save_model(tmp_path, *shape),
        "-d",
        "HETERO:ORT,CPU",
        "-a",
        "model=CPU",
        "-i",
        cat,
        *options,
    )
    pixels = PIXELS[..., ::-1] if color == "BGR" else PIXELS
    expected = (formulas.resize(pixels, "RESIZE_LINEAR", 7, 22) - [120, 110, 100]) / 2
    expected = expected if shape[-1] == 3 else expected.transpose(2, 0, 1)
    np.testing.assert_allclose(output.reshape(expected.shape), expected, atol=1e-3)


def test_image_becomes_gray_for_one_channel(shell, tmp_path, cat):
    output = run_model(
        shell, tmp_path, save_model(tmp_path, 1, 1, 13, 18), "-d", "CPU", "-i", f"x={cat}"
    )
    np.testing.assert_allclose(output[0, 0], formulas.gray(PIXELS), atol=0.501)


def test_image_is_rotated_by_its_exif_orientation(shell, tmp_path):
    path = tmp_path / "turned.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.fromarray(PIXELS).save(path, exif=exif)
    output = run_model(
        shell, tmp_path, save_model(tmp_path, 1, "h", "w", 3), "-d", "CPU", "-i", path
    )
    np.testing.assert_array_equal(output[0], np.rot90(PIXELS, -1))


def test_blob_contains_its_preprocessing(shell, tmp_path):
    file, blob = save_model(tmp_path, 1, 3, 4, 5), tmp_path / "blob.hetero"
    assert shell("compile", file, "-d", "CPU", "--mean", "1,2,3", "-o", blob).code == 0
    values = tmp_path / "x.npy"
    x = picture((1, 3, 4, 5), np.float32)
    np.save(values, x)
    output = run_model(shell, tmp_path, blob, "-i", values)
    np.testing.assert_array_equal(output, x - np.reshape([1, 2, 3], (3, 1, 1)).astype(np.float32))
    error = shell("run", blob, "--mean", "1").err
    assert "pass them to `hetero compile`" in error


def test_preprocessed_light_model_is_not_compared(shell):
    result = shell("run light:squeezenet -d ORT --mean 1 --json")
    assert result.code == 0
    assert result.document["check"] is None


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((1, 5, 7, 9), "-i {cat}", "--layout x=NCHW"),
        ((1, 3, 7, 3), "-i {cat}", "--layout x=NCHW"),
        ((4, 3, 7, 9), "-i {cat}", "an image needs a batch of 1"),
        ((5, 7), "-i {cat}", "its layout cannot be inferred"),
        ((1, 3, 7, 9), "-i {cat} --layout NHWC", "with 1 or 3 channels"),
        ((1, 3, 7, 9), "-i z={cat}", "the model has no input z"),
        ((1, 3, 7, 9), "--mean z=1", "the model has no input z; expected x"),
        ((1, 3, 7, 9), "--mean red", "expected numbers"),
        ((1, 3, 7, 9), "--mean 1 --mean 2", "set twice"),
        ((1, 3, 7, 9), "-i {text}", "Pillow cannot read the image"),
        ((1, 3, 7, 9), "--layout NXXW", "each letter"),
        ((1, 3, 7, 9), "--scale 1,0,2", "expected numbers other than 0"),
        ((1, 3, 7, 9), "--mean 1,2", "for each channel"),
    ],
)
def test_invalid_preprocessing_options_are_refused(shell, tmp_path, cat, shape, options, words):
    text = tmp_path / "text.png"
    text.write_text("no picture")
    result = shell(
        "run",
        save_model(tmp_path, *shape),
        "-d",
        "CPU",
        *options.format(cat=cat, text=text).split(),
    )
    assert result.code in (1, 2)
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err


def test_input_name_is_required_for_two_inputs(shell, tmp_path):
    two = branches()
    two.graph.input.append(onnx.helper.make_tensor_value_info("z", 1, [1]))
    path = tmp_path / "two.onnx"
    onnx.save_model(two, path)
    result = shell("run", path, "-d", "CPU", "--mean", "1")
    assert "the model has several inputs (x, z)" in result.err


def test_missing_pillow_error_names_the_extra(shell, tmp_path, cat, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = shell("run", save_model(tmp_path, 1, 3, 7, 9), "-d", "CPU", "-i", cat)
    assert result.code == 2
    assert install_command("pictures") in result.err
