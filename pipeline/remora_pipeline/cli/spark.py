"""Groups of commands that need Spark: imported when they are asked for, and not before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from remora.cli.groups import CommandGroup
from remora_pipeline.replay.errors import named_by_path
from remora_pipeline.replay.termination import ended_by_sigterm

_EXTRA = frozenset({
    "aiobotocore", "botocore", "jinja2", "matplotlib", "numpy", "pandas", "py4j", "pyarrow", "pyiceberg",
    "pyiceberg_core", "pyspark", "sqlalchemy", "zstandard",
})  # fmt: skip


@contextmanager
def _missing_package_named() -> Iterator[None]:
    """Say what to install, where a package of the pipeline's is missing."""
    try:
        yield
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        raise click.ClickException(f"{package} is missing; install it with: pip install remorad-pipeline") from exc


class SparkCommands(CommandGroup):
    """Commands by name, each as `module:name` within this package. Without Spark they say what to install."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what the file system refuses is one line with the file's name, and SIGTERM ends it by one."""
        with ended_by_sigterm(), named_by_path("a file"), _missing_package_named():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of their use."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None where there is none."""
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name].partition(":")
        with _missing_package_named():
            command: click.Command = getattr(import_module(f"remora_pipeline.cli.{module}"), name)
        return command
