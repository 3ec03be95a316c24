"""The site of the documents: which pages it has, where its links lead, and that it can be built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devkit import site

ROOT = Path(__file__).parents[2]
README = """# it

## Where to look next

| to ... | read |
|---|---|
| **run it** | [docs/a.md](docs/a.md): how; [docs/b.md](docs/b.md#why) |
| **change it** | [CONTRIBUTING.md](CONTRIBUTING.md), [docs/a.md](docs/a.md) again |

## Built on

[docs/c.md](docs/c.md)
"""


def test_the_navigation_is_the_readmes_table() -> None:
    """Each page stands once, below the first task that names it; those that none names come last."""
    pages = ["README.md", "CONTRIBUTING.md", "docs/a.md", "docs/b.md", "docs/c.md"]

    assert site.navigation(README, pages) == [
        {"remora": "README.md"},
        {"Run it": ["docs/a.md", "docs/b.md"]},
        {"Change it": ["CONTRIBUTING.md"]},
        {"Commands": "docs/commands.md"},
        {"More": ["docs/c.md"]},
    ]


def test_every_page_of_the_repository_is_in_the_navigation(tmp_path: Path) -> None:
    """The staged pages are those of the navigation, with the page of commands."""
    site.stage(ROOT, tmp_path / "site")

    staged = {str(each.relative_to(tmp_path / "site/pages")) for each in (tmp_path / "site/pages").rglob("*.md")}
    pages = [each for each in staged if each != site.COMMANDS]
    groups = site.navigation((ROOT / "README.md").read_text(), pages)
    listed = [each for group in groups for found in group.values() for each in site.below(found)]

    assert sorted(listed) == sorted(staged)
    assert "## remora topic create\n" in (tmp_path / "site/pages" / site.COMMANDS).read_text()


@pytest.mark.parametrize(
    ("repository", "code"),
    [("https://x/r/blob/v1", "[the test](https://x/r/blob/v1/tests/t.py)"), ("", "the test")],
    ids=["a known repository", "none"],
)
def test_a_link_to_no_page_leads_to_the_repository(tmp_path: Path, repository: str, code: str) -> None:
    """Links to pages, headings, pictures and other sites stay, and so does what only looks like a link, in a block."""
    (tmp_path / "docs").mkdir()
    kept = (
        "[b](b.md#x) [here](#y) ![p](images/p.png) [up](../README.md) [w](https://w)\n```\n[no](../tests/t.py)\n```\n"
    )
    (tmp_path / "docs/a.md").write_text(f"{kept}[the test](../tests/t.py)\n")
    (tmp_path / "docs/b.md").write_text("# b\n")

    assert site.linked(tmp_path, "docs/a.md", repository) == f"{kept}{code}\n"


@pytest.mark.full("MkDocs is installed from the package index, and builds for half a minute")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Every link of every page leads somewhere, also those to headings, and the search has its index."""
    done = subprocess.run([ROOT / "scripts/docs", tmp_path / "site"], capture_output=True, text=True)

    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr[-3000:]
    for page in ("index.html", "docs/operations.html", "docs/commands.html", "search/search_index.json"):
        assert (tmp_path / "site" / page).exists()
