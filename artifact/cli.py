"""`basin`: one command line whose subcommands are entry points of the group `basin.commands`."""

import sys
from importlib.metadata import entry_points

import typer


def main() -> None:
    """Run one subcommand; only the one that is named gets imported, so `basin trace` does not pay for matplotlib."""
    points = {point.name: point for point in entry_points(group="basin.commands")}
    app = typer.Typer(
        name="basin",
        help="Metastable failure in agent serving: reproduce it, predict it, cure it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)  # keeps the name of a subcommand that is the only one loaded
    named = [points[word] for word in sys.argv[1:2] if word in points]
    for point in named or points.values():
        loaded = point.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=point.name)
        else:
            app.command(name=point.name)(loaded)
    app()
