"""`basin`: one command line whose subcommands are entry points of the group `basin.commands`."""

from importlib.metadata import entry_points

import click
import typer
from typer.main import get_command


class EntryPointGroup(click.Group):
    """Loads a subcommand only when it is named, so that `basin trace` does not pay for matplotlib."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(point.name for point in entry_points(group="basin.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group="basin.commands", name=cmd_name):
            loaded = point.load()
            command = get_command(loaded) if isinstance(loaded, typer.Typer) else loaded
            command.name = cmd_name
            return command
        return None


main = EntryPointGroup(name="basin", help="Metastable failure in agent serving: reproduce it, predict it, cure it.")
