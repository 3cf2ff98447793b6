"""What the user asked for: devices in order, options sorted by who reads them, pins."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.affinity.affinity import Affinity
from hetero.cache.blob import Compilation
from hetero.config import SplitConfig


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What a model is to be queried, planned or compiled for, and with."""

    #: Names, the most preferred first.
    devices: tuple[str, ...]
    config: SplitConfig
    #: Nodes that are placed already.
    pins: Affinity
    #: The same as a blob records it.
    compilation: Compilation
