"""Phrases that a reader of the pages stumbles over, with what to write: `python scripts/prose.py`.

They are checked in README, the pages of the navigation and those of evidence; code is left out.
"""

import re
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PHRASES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""Regular expressions, and what to write."""
GENERATED = ("reference/api/", "reference/commands.md", "notebooks/")
"""Pages that other texts make."""


def navigation_labels() -> dict[str, str]:
    """The pages of the navigation with their labels."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:\n")[2]
    return dict(_leaves(yaml.safe_load(text)))


def _leaves(entries: list) -> list[tuple[str, str]]:
    found = []
    for entry in entries:
        ((label, value),) = entry.items()
        found += _leaves(value) if isinstance(value, list) else [(value, label)]
    return found


def page_source(page: str) -> Path:
    """The file that a page of the navigation is written in."""
    roots = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
    return ROOT / roots[page] if page in roots else ROOT / "docs" / page


def written_pages() -> list[str]:
    """The pages of the navigation that people write, without the changelog."""
    pages = [page for page in navigation_labels() if not page.startswith(GENERATED)]
    return [page for page in pages if page != "changelog.md"]


def evidence_pages() -> list[str]:
    """The pages of evidence."""
    return [f"evidence/{path.name}" for path in sorted((ROOT / "docs/evidence").glob("*.md"))]


def blank_lines(match: re.Match[str]) -> str:
    """As many line breaks as what matched has."""
    return "\n" * match[0].count("\n")


def plain_text(text: str) -> str:
    """A page without code, tables' rules, formulas and addresses; lines stay where they are."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<!--.*?-->", blank_lines, text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|https?://\S+", "", text)


def replace_table(page: Path, table: str) -> None:
    """Put a table between the marks of a page."""
    head, begin, rest = page.read_text("utf-8").partition("<!-- table -->\n")
    page.write_text(f"{head}{begin}{table}{''.join(rest.partition('<!-- end -->')[1:])}", "utf-8")


def stumbling_phrases(page: str) -> list[str]:
    """Every phrase of the list on a page, with its line and what to write."""
    text = plain_text(page_source(page).read_text("utf-8"))
    return [
        f"{page}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: write {better!r}"
        for phrase, better in PHRASES.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


if __name__ == "__main__":
    pages = [*written_pages(), *evidence_pages()]
    problems = [line for page in pages for line in stumbling_phrases(page)]
    sys.stdout.write("\n".join([*problems, f"{len(problems)} phrases\n"]))
    sys.exit(bool(problems))
