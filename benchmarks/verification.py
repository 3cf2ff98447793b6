"""Cost of verification: its seconds, its share of compilation, and the nodes that it refuses.

``python -m benchmarks.verification [--models LIST] [--devices LIST] [--json]``. Each model is
compiled with VERIFY=YES in a new Core and stored in a cache, then loaded from it. `compile_s`
includes `verify_s`; `cached_verify_s` is the verification of the cache hit. The 8-bit models
(``*_qdq``) overflow on processors without VNNI, so their nodes are refused rightly there.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import hetero
from benchmarks import small_networks
from benchmarks.tables import names, print_rows
from hetero.devices.model.light_models import light_model_names
from hetero.examples.small_decoder import small_decoder
from hetero.verify.verdict import refusals_of

_NETWORKS: Final = (
    "bert",
    "vit",
    "gpt",
    "mobilenet",
    "unet",
    "lstm",
    "bert_qdq",
    "mobilenet_qdq",
)
#: Name -> function that returns the model.
MODELS: Final[dict[str, Callable[[], Any]]] = {
    **{name: getattr(small_networks, name) for name in _NETWORKS},
    "decoder": small_decoder,
    **{name: partial(str, f"light:{name}") for name in light_model_names()},
}
DEVICES: Final = "ORT,OV"


def row(name: str, device: str, folder: str) -> dict[str, Any]:
    """Compile a model for a device with fallback to CPU, and load it from the cache."""
    devices = f"HETERO:{device},CPU"
    config = {"VERIFY": "YES", "CACHE_DIR": folder}
    source = MODELS[name]()
    with hetero.Core(executor="inprocess") as core:
        model = core.read_model(source)
        core.query_model(model, devices)  # starts the processes of queries
        began_s = time.perf_counter()
        with core.compile_model(model, devices, config) as compiled:
            compile_s = time.perf_counter() - began_s
            verification = compiled.verification
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(source, devices, config) as compiled,
    ):
        if not compiled.get_property("LOADED_FROM_CACHE"):
            raise RuntimeError(f"the cache had no {name}")
        cached_verify_s = compiled.verification.seconds
    refused = {node for verdict in verification.verdicts for node in refusals_of(verdict)}
    return {
        "model": name,
        "device": device,
        "nodes": len(model.nodes),
        "verified subgraphs": len(verification.verdicts),
        "equal": verification.count("agrees"),
        "not verified": verification.count("not verified"),
        "refused nodes": len(refused),
        "compile_s": compile_s,
        "verify_s": verification.seconds,
        "share": verification.seconds / compile_s,
        "cached_verify_s": cached_verify_s,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names, default=list(MODELS))
    parser.add_argument("--devices", type=names, default=names(DEVICES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.models:
        for device in options.devices:
            with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
                rows.append(row(name, device, folder))
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
