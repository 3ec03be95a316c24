"""Shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    For bash:  remora completion bash > /etc/bash_completion.d/remora
    For zsh:   remora completion zsh > "${fpath[1]}/_remora"
    For fish:  remora completion fish > ~/.config/fish/completions/remora.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(found(context.find_root().command, {}, "remora", "_REMORA_COMPLETE").source())
