"""``python -m geminid`` is the ``geminid`` command."""

from geminid.cli.main import main

main()
