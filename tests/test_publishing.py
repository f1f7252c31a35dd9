"""What an index, a workflow and a reader get: links that lead somewhere, commands that install."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LINK = re.compile(r"\]\(([^)]*)\)")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture
def index_page(monkeypatch):
    """The build's hook, without the build backend."""
    backend = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", backend)
    monkeypatch.delitem(sys.modules, "index_page", raising=False)
    import index_page

    def page(repository):
        monkeypatch.setenv("REPOSITORY_URL", repository)
        hook, metadata = index_page.IndexPage(), {"version": "1.2"}
        hook.root = ROOT
        hook.update(metadata)
        return metadata["readme"]["text"]

    return page


def test_links_lead_from_the_page_of_an_index_into_the_repository(index_page):
    readme = (ROOT / "README.md").read_text("utf-8")
    links = LINK.findall(index_page("https://host/owner/name/"))
    assert len(links) == len(LINK.findall(readme)) - readme.count("#gh-dark-mode-only")
    inside = [x for x in links if x.startswith("https://host/")]
    assert len(inside) > 15
    for link in inside:
        path = re.fullmatch(r"https://host/owner/name/(?:raw|blob)/v1\.2/([^#]+)(#.*)?", link)[1]
        assert (ROOT / path).is_file()
        assert ("/raw/" in link) == (Path(path).suffix == ".svg")
    assert all(x.startswith("https://") for x in links)


def test_without_an_address_links_are_their_text(index_page):
    page = index_page("")
    assert all(x.startswith("https://") for x in LINK.findall(page))
    assert "[costs]" not in page
    assert "(costs)" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_install_what_exists(page):
    """A clone with extras that it has, or other projects; never this one from an index."""
    command = r"pip install ((?:[\"'][^\"'\n]+[\"']|[\w.\[\]=,-]+)(?: [\w.\[\]=-]+)*)"
    for words in re.findall(command, page.read_text("utf-8")):
        for word in words.split():
            name, extras = re.fullmatch(r"([\w.-]+?)(?:\[(.*)\])?", word.strip("\"'")).groups()
            assert "similarity" not in name
            assert name != "." or set(filter(None, (extras or "").split(","))) <= set(
                PROJECT["optional-dependencies"]
            )


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_actions_are_pinned_by_commit(workflow):
    used = re.findall(r"uses: (.*)", workflow.read_text("utf-8"))
    assert used
    for line in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    assert len(set(used)) == len({line.partition("@")[0] for line in used})


def test_the_suite_runs_on_three_systems_and_on_arm():
    text = (ROOT / ".github/workflows/checks.yml").read_text("utf-8")
    tests = text.partition("\n  tests:")[2].partition("\n  versions:")[0]
    assert set(re.findall(r"os: (\w+)-latest", tests)) == {"ubuntu", "macos", "windows"}
    assert "os: ubuntu-24.04-arm" in tests


def test_one_description():
    """README, the home page, says it first; the site's comes from pyproject.toml."""
    assert PROJECT["description"] in " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "site_description: !ENV SITE_DESCRIPTION" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_every_variable_of_the_site_is_set_by_its_build_or_the_workflow_that_deploys():
    sources = ("scripts/build_site.py", ".github/workflows/checks.yml")
    texts = [(ROOT / file).read_text("utf-8") for file in sources]
    names = re.findall(r"!ENV \[?(\w+)", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert {"REPOSITORY_URL", "SITE_URL"} < {*names}
    for name in names:
        assert f'environment["{name}"]' in texts[0] or f" {name}: " in texts[1], name


def test_pages_name_the_version_to_cite():
    for page in ("README.md", "docs/reference/cite.md", "CITATION.cff"):
        assert PROJECT["version"] in (ROOT / page).read_text("utf-8"), page
