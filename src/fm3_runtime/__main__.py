"""`python -m fm3_runtime` is the `fm3` command, for launchers that start modules."""

from fm3_runtime.cli import main

if __name__ == "__main__":
    main()
