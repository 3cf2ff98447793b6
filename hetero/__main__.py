"""``python -m hetero``: the command line."""

from hetero.cli import main

main()
