"""Examples at the end of each command's help; tests run each of them unchanged."""

from __future__ import annotations

from typing import Final

import click

_CACHE: Final = (
    "hetero run light:squeezenet -d ORT -c CACHE_DIR=cache",
    "hetero cache list --dir cache",
)
_POOL: Final = (
    "hetero pool up",
    "hetero run light:squeezenet -d HETERO:ORT,CPU",
    "hetero pool status",
    "hetero pool down",
)
#: Command -> lines of its example.
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "devices": ("hetero devices --devices ORT=2",),
    "doctor": ("hetero doctor",),
    "inspect": (
        "hetero inspect light:squeezenet",
        "hetero compile light:squeezenet -d CPU -o squeezenet.hetero",
        "hetero inspect squeezenet.hetero",
    ),
    "check": (
        "hetero compile light:squeezenet -d HETERO:ORT,CPU -o squeezenet.hetero",
        "hetero check squeezenet.hetero",
    ),
    "query": ("hetero query light:shufflenet -d HETERO:ORT,CPU -a op:Conv=CPU",),
    "profile": ("hetero profile light:shufflenet -d HETERO:ORT,CPU -o costs.json",),
    "plan": (
        "hetero profile light:shufflenet -d HETERO:ORT,CPU -o costs.json",
        "hetero plan light:shufflenet -d HETERO:ORT,CPU --hint THROUGHPUT --costs costs.json",
    ),
    "compile": ("hetero compile light:squeezenet -d HETERO:ORT,CPU --subgraphs-dir parts",),
    "run": ("hetero run light:squeezenet -d HETERO:ORT,CPU -a op:Concat=CPU",),
    "generate": (
        "python -m hetero.examples.small_decoder small.onnx",
        "hetero generate small.onnx -d HETERO:ORT,CPU --layers 0=ORT,1=CPU --ids 3,14,15 -n 8",
    ),
    "bench": ("hetero bench light:squeezenet -d HETERO:ORT,CPU -a op:Concat=CPU -t 2",),
    "compare": (
        "hetero compare light:bvlc_alexnet -d ORT,CPU",
        "hetero compare light:bvlc_alexnet -d CPU,HETERO:ORT,CPU -a op:LRN=CPU",
    ),
    "serve": ("hetero serve light:squeezenet -d HETERO:ORT,CPU --check",),
    "simulate": (
        "hetero profile light:shufflenet -d HETERO:ORT,CPU -o costs.json",
        "hetero simulate light:shufflenet -d HETERO:ORT,CPU --costs costs.json -n 1000",
    ),
    "cache": _CACHE,
    "cache list": _CACHE,
    "cache verify": (_CACHE[0], "hetero cache verify --dir cache"),
    "cache prune": (_CACHE[0], "hetero cache prune --dir cache --max-size 500MB"),
    "cache clear": (_CACHE[0], "hetero cache clear --dir cache"),
    "top": ("hetero bench light:squeezenet -t 60 --metrics-port 9100 &", "hetero top 9100"),
    "check-device": ("hetero check-device CPU",),
    "pool": _POOL,
    "pool up": _POOL,
    "pool status": _POOL,
    "pool down": _POOL,
    "probe": ("hetero probe",),
}


def add_examples(commands: click.Group, prefix: str = "") -> None:
    """Append each command's example to its help; commands of other packages have their own."""
    for name, command in commands.commands.items():
        if example := EXAMPLES.get(prefix + name):
            # click does not rewrap a paragraph that starts with \b.
            lines = "\n".join(f"  {line}" for line in example)
            command.epilog = f"\b\nExample:\n{lines}"
        if isinstance(command, click.Group):
            add_examples(command, f"{name} ")
