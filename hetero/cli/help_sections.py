"""Help of commands in sections: a command's own options first, shared ones under headings."""

from __future__ import annotations

from typing import Final

import click

#: Heading -> names of its options in Python; the first one must be an option of the command.
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Placement by cost": ("policy", "hint", "costs", "plan_seconds", "seed", "max_subgraphs"),
    "Preprocessing": ("layout", "mean", "scale", "color"),
    "Observation": ("trace", "metrics_port", "opentelemetry"),
    "Devices and cluster": (
        "device_counts",
        "executor",
        "address",
        "plugins",
        "provider_libraries",
    ),
}


class SectionedCommand(click.Command):
    """Command whose help lists shared options in sections of their own, after its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; the sections of `SECTIONS` come last."""
        params = self.get_params(ctx)
        names = {param.name for param in params}
        sections = {
            name: heading
            for heading, members in SECTIONS.items()
            if members[0] in names
            for name in members
        }
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        rows |= {heading: [] for heading in SECTIONS}
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                rows[sections.get(param.name or "", "Options")].append(record)
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
