"""A software GPU for tests: Mesa's Vulkan driver, which `deploy/software-gpu.sh` unpacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[2] / "deploy" / "software-gpu.sh"


@cache
def software_gpu_environment() -> dict[str, str]:
    """Return the environment of processes that use the software GPU; skip the test without it."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("the software GPU needs apt-get and dpkg-deb")
    process = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=500, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"deploy/software-gpu.sh cannot unpack the software GPU: {reason}")
    variables = dict(re.findall(r"export (\w+)='?(.*?)'?$", process.stdout, re.MULTILINE))
    return {**os.environ, **variables}
