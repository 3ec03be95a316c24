"""Groups of commands that list each command with its whole first sentence, over as many lines as it takes."""

from __future__ import annotations

from difflib import get_close_matches

import click

from remora.model.words import printable

_NO_LIMIT = 1000


class CommandGroup(click.Group):
    """Click itself cuts the sentences off where the terminal ends, and does not say which command was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with. The error for an unknown one names the most similar."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            raise click.UsageError(f"{exc.message.rstrip('.')}; did you mean {close[0]!r}?", ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run what the arguments name. An error of theirs is shown with no character that a terminal obeys."""
        try:
            return super().invoke(ctx)
        except click.ClickException as exc:
            if not isinstance(exc, click.exceptions.NoArgsIsHelpError):  # whose message is the whole help
                exc.message = printable(exc.message)  # type: ignore[misc]  # it is what click shows, and nothing else is
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with what they do."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_NO_LIMIT)) for name, command in found if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
