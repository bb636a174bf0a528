"""``geminid open``: the web page of the service, with a link that logs the browser in."""

from __future__ import annotations

import sys
import webbrowser
from typing import Annotated

import typer

from geminid.cli.client import client, reporting_trouble
from geminid.cli.output import console, print_json


def open_page(
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the link and open no browser.", show_default=False)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Print a link to the service's web page and open it. The link works once, within a minute."""
    with reporting_trouble():
        link = client().post("login-links")
    if json:
        print_json(link)
        return
    console.print(link["url"], soft_wrap=True, highlight=False)
    if print_only or not sys.stdout.isatty():
        return
    if not webbrowser.open(link["url"]):
        console.print(f"no browser was found here: open the link within {link['expires_in_s']:.0f} s")
