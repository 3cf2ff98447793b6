"""Examples at the end of each command's help; each of them runs as it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

#: Command -> what a first use looks like, line by line.
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "devices": ("hetero devices --devices ORT=2",),
    "query": ("hetero query light:shufflenet -d HETERO:ORT,CPU -a op:Conv=CPU",),
    "profile": ("hetero profile light:shufflenet -d HETERO:ORT,CPU -o costs.json",),
    "plan": (
        "hetero profile light:shufflenet -d HETERO:ORT,CPU -o costs.json",
        "hetero plan light:shufflenet -d HETERO:ORT,CPU --hint THROUGHPUT --costs costs.json",
    ),
    "compile": ("hetero compile light:squeezenet -d HETERO:ORT,CPU --subgraphs-dir parts",),
    "run": ("hetero run light:squeezenet -d HETERO:ORT,CPU -a op:Concat=CPU",),
    "bench": ("hetero bench light:squeezenet -d HETERO:ORT,CPU -a op:Concat=CPU -t 2",),
    "compare": ("hetero compare light:squeezenet -d ORT,CPU",),
    "blob": (
        "hetero compile light:squeezenet -d CPU -o squeezenet.hetero",
        "hetero blob squeezenet.hetero",
    ),
    "cache": (
        "hetero run light:squeezenet -d CPU -c CACHE_DIR=cache",
        "hetero cache list --dir cache",
    ),
    "probe": ("hetero probe",),
}


def add_examples(commands: Iterable[click.Command]) -> None:
    """Put each command's example at the end of its help."""
    for command in commands:
        # click keeps the lines of a paragraph that starts with \b as they are.
        lines = "\n".join(f"  {line}" for line in EXAMPLES[command.name or ""])
        command.epilog = f"\b\nExample:\n{lines}"
