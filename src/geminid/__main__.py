"""``geminid``, which is also ``python -m geminid``."""

from geminid.cli import ends_when_interrupted


def main() -> None:
    """Entry point of the console script: imports the command line where Ctrl-C is already handled."""
    with ends_when_interrupted():
        from geminid.cli.main import main as run

        run()


if __name__ == "__main__":
    main()
