"""Entry point of ``python -m benchmarks.mutants``."""

from benchmarks.mutants.command import main

if __name__ == "__main__":
    main()
