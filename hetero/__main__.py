"""``hetero`` and ``python -m hetero``: the command line, in a process that ends with it."""

from typing import NoReturn

from hetero.cli import main
from hetero.cli.signals import hear_signals
from scheduler.processes.process_end import end_with


def program() -> NoReturn:
    """Run the command line, and end."""
    hear_signals()
    end_with(main)


if __name__ == "__main__":
    program()
