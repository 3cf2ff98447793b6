"""Pictures as inputs: files that Pillow reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import numpy as np

#: Suffixes of files that are read as pictures.
SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def is_picture(path: Path) -> bool:
    """Whether a file is one by its name."""
    return path.suffix.lower() in SUFFIXES


def read_picture(path: Path) -> np.ndarray:
    """Return a picture as it is to be seen: bytes (height, width, 3), red first."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise click.UsageError(
            f"--input {path}: pictures are read by Pillow, which is not installed: "
            "pip install 'hetero[pictures]'. Or give a .npy file."
        ) from error
    try:
        with Image.open(path) as file:
            return np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise click.UsageError(f"--input {path}: not a picture for Pillow: {error}") from error
