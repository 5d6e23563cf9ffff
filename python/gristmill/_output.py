"""What commands print for other programs."""

import json
from typing import Any

import click

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def print_json(value: Any) -> None:
    """Prints a command's result for other programs."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
