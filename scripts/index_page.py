"""The README as a package index shows it, with links that lead somewhere from there.

Hatchling calls this at every build (`tool.hatch.metadata` in pyproject.toml). `REPOSITORY_URL` is
the address of the repository, which the workflow that publishes sets. Without it there is nothing
to link to: links become their text, and pictures are left out.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def absolute_links(text: str, repository: str, version: str) -> str:
    """Markdown whose relative links and pictures lead into the repository, at the tag `version`."""

    def absolute(link: re.Match[str]) -> str:
        picture, shown, path = link.groups()
        if path.endswith("#gh-dark-mode-only"):  # an index has one theme
            return ""
        if not repository:
            return "" if picture else shown
        view = "raw" if picture else "blob"
        return f"{picture}[{shown}]({repository}/{view}/v{version}/{path})"

    return RELATIVE_LINK.sub(absolute, text)


class IndexPage(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling with the table `project` of pyproject.toml."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        page = absolute_links(text, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
