"""The site of the documents: its pages, and the configuration that MkDocs builds it by.

The pages are the repository's own, with a page of all commands that is made of the commands. The navigation is the
table *Where to look next* of README.md. A link to a file that is no page leads to the repository, where its address is
known.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from remora.cli import group

FRONT = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
COMMANDS = "docs/commands.md"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def stage(root: Path, out: Path, repository: str = "") -> None:
    """Make the folder `out` anew, with all pages and `mkdocs.yml`.

    `repository` is the address below which its files are shown, as https://example.org/remora/blob/v1.0.0.
    """
    shutil.rmtree(out, ignore_errors=True)
    pages = [*FRONT, *(str(each.relative_to(root)) for each in sorted((root / "docs").rglob("*.md")))]
    shutil.copytree(root / "docs", out / "pages/docs")
    for page in pages:
        (out / "pages" / page).write_text(linked(root, page, repository))
    (out / "pages" / COMMANDS).write_text(commands())
    # JSON is YAML, too.
    (out / "mkdocs.yml").write_text(json.dumps(configuration(root, pages), indent=1) + "\n")


def configuration(root: Path, pages: Sequence[str]) -> dict[str, object]:
    """What MkDocs is told."""
    base: dict[str, object] = json.loads((root / "deploy/site.json").read_text())
    return {**base, "nav": navigation((root / "README.md").read_text(), pages)}


Nav = dict[str, str | list[str]]


def below(entry: str | list[str]) -> list[str]:
    """The pages of an entry of the navigation: one, or those of a task."""
    return [entry] if isinstance(entry, str) else entry


def navigation(readme: str, pages: Sequence[str]) -> list[Nav]:
    """The pages by task, as the table of README.md has them; then those that it does not name."""
    found: list[Nav] = [{"remora": "README.md"}]
    table, named = readme.partition("\n## Where to look next\n")[2].partition("\n## ")[0], {"README.md"}
    for task, row in re.findall(r"(?m)^\| \*\*(.+?)\*\*(.*)\|$", table):
        below = [each for each in re.findall(r"\]\(([\w/.-]+\.md)", row) if each in pages and each not in named]
        named.update(below)
        found.append({task[0].upper() + task[1:]: list(below)})
    found.append({"Commands": COMMANDS})
    found.append({"More": [each for each in pages if each not in named]})
    return found


def linked(root: Path, page: str, repository: str) -> str:
    """The text of a page whose links to files that are no pages lead to the repository, or are no links."""

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        file, _, anchor = target.partition("#")
        if picture or not file or "://" in target:
            return match[0]
        path = (root / page).parent.joinpath(file).resolve()
        name = str(path.relative_to(root.resolve()))
        if name in FRONT or (path.is_file() and name.startswith("docs/")):
            return match[0]
        return f"[{text}]({repository}/{name}{'#' * bool(anchor)}{anchor})" if repository else text

    parts = re.split(r"(?ms)(^ *```.*?^ *```)", (root / page).read_text())
    return "".join(part if place % 2 else _LINK.sub(link, part) for place, part in enumerate(parts))


def commands() -> str:
    """A page with what each command says of itself."""
    contexts = _contexts(click.Context(group, info_name="remora", terminal_width=100))
    parts = [f"## {each.command_path}\n\n```text\n{each.get_help()}\n```\n" for each in contexts]
    return "\n".join(["# Commands\n\nWhat each command says with `--help`.\n", *parts])


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """A context to ask each command in, those of groups behind theirs."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            found = context.command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _contexts(click.Context(found, parent=context, info_name=name, terminal_width=100))


if __name__ == "__main__":
    stage(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
