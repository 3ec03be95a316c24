"""Groups of commands that list each command with its whole first sentence, over as many lines as it takes."""

from __future__ import annotations

import click

_NO_LIMIT = 1000


class Group(click.Group):
    """Click itself cuts the sentences off where the terminal ends."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with what they do."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_NO_LIMIT)) for name, command in found if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
