"""The command line with pictures and numbers to normalise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.support import preprocess_formulas as formulas
from tests.support.command_line import Shell
from tests.support.models import branches
from tests.support.preprocess_cases import model, picture

PIXELS = picture((13, 18, 3))


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "cat.png"
    Image.fromarray(PIXELS).save(path)
    return path


def saved(tmp_path: Path, *shape: Any) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(shape), path)
    return path


def output(shell: Shell, tmp_path: Path, *line: object) -> np.ndarray:
    file = tmp_path / "out.npz"
    done = shell("run", *line, "-o", file)
    assert done.code == 0, done.err
    found: np.ndarray = np.load(file)["y"]
    return found


@pytest.mark.parametrize("shape", [(1, 3, 7, 22), (1, 7, 22, 3), (3, 7, 22), ("batch", 3, 7, 22)])
@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_image_is_resized_and_normalised(
    shell: Shell, tmp_path: Path, cat: Path, shape: tuple[Any, ...], color: str
) -> None:
    options = ("--color", color, "--mean", "120,110,100", "--scale", "x=2")
    got = output(
        shell,
        tmp_path,
        saved(tmp_path, *shape),
        "-d",
        "HETERO:ORT,CPU",
        "-a",
        "model=CPU",
        "-i",
        cat,
        *options,
    )
    pixels = PIXELS[..., ::-1] if color == "BGR" else PIXELS
    want = (formulas.resize(pixels, "RESIZE_LINEAR", 7, 22) - [120, 110, 100]) / 2
    want = want if shape[-1] == 3 else want.transpose(2, 0, 1)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-3)


def test_image_becomes_gray_for_a_model_with_one_channel(
    shell: Shell, tmp_path: Path, cat: Path
) -> None:
    got = output(shell, tmp_path, saved(tmp_path, 1, 1, 13, 18), "-d", "CPU", "-i", f"x={cat}")
    np.testing.assert_allclose(got[0, 0], formulas.gray(PIXELS), atol=0.501)


def test_image_is_rotated_by_its_exif_orientation(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "turned.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(PIXELS).save(path, exif=exif)
    got = output(shell, tmp_path, saved(tmp_path, 1, "h", "w", 3), "-d", "CPU", "-i", path)
    np.testing.assert_array_equal(got[0], np.rot90(PIXELS, -1))


def test_blob_contains_its_preprocessing(shell: Shell, tmp_path: Path) -> None:
    file, blob = saved(tmp_path, 1, 3, 4, 5), tmp_path / "blob.hetero"
    assert shell("compile", file, "-d", "CPU", "--mean", "1,2,3", "-o", blob).code == 0
    values = tmp_path / "x.npy"
    x = picture((1, 3, 4, 5), np.float32)
    np.save(values, x)
    got = output(shell, tmp_path, blob, "-i", values)
    np.testing.assert_array_equal(got, x - np.reshape([1, 2, 3], (3, 1, 1)).astype(np.float32))
    told = shell("run", blob, "--mean", "1").err
    assert "pass them to `hetero compile`" in told


def test_preprocessed_light_model_is_not_compared(shell: Shell) -> None:
    done = shell("run light:squeezenet -d ORT --mean 1 --json")
    assert done.code == 0
    assert done.document["check"] is None


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
def test_invalid_preprocessing_options_are_refused(
    shell: Shell, tmp_path: Path, cat: Path, shape: tuple[int, ...], options: str, words: str
) -> None:
    text = tmp_path / "text.png"
    text.write_text("no picture")
    done = shell(
        "run", saved(tmp_path, *shape), "-d", "CPU", *options.format(cat=cat, text=text).split()
    )
    assert done.code in (1, 2)
    assert words in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_input_name_is_required_for_two_inputs(shell: Shell, tmp_path: Path) -> None:
    two = branches()
    two.graph.input.append(onnx.helper.make_tensor_value_info("z", 1, [1]))
    path = tmp_path / "two.onnx"
    onnx.save_model(two, path)
    ambiguous = shell("run", path, "-d", "CPU", "--mean", "1")
    assert "the model has several inputs (x, z)" in ambiguous.err


def test_missing_pillow_error_names_the_extra(
    shell: Shell, tmp_path: Path, cat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = shell("run", saved(tmp_path, 1, 3, 7, 9), "-d", "CPU", "-i", cat)
    assert done.code == 2
    assert "pip install 'hetero[pictures]'" in done.err
