"""The command line ``hetero``; `hetero.cli.main` assembles its commands."""
