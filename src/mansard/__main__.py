"""`python -m mansard` is the same as `mansard`."""

from mansard.cli.main import main

if __name__ == "__main__":
    main()
