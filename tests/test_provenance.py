"""Every record in results/ is of code that the history has, without local changes."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def git(*words):
    """What git prints, or None where this is no clone."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def commits(content):
    """The commits of all processes that made a record, and "-dirty" for local changes."""
    if isinstance(content, list):
        parts = map(commits, content)
    elif isinstance(content, dict):
        texts = [content.get("commit"), *(content.get("resumed") or ())]
        yield from (text for text in texts if text and isinstance(text, str))
        yield from ["-dirty"] * bool(content.get("dirty"))
        parts = map(commits, content.values())
    else:
        parts = ()
    for part in parts:
        yield from part


def unknown_code(content, history):
    """The commits that the history lacks, and those with local changes; or that there is none."""
    found = {*commits(content)}
    return sorted(found - history) if found else ["no commit"]


def test_records_are_of_known_code():
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("not a full clone: the history that records name is not here")
    history = set(git("rev-list", "HEAD").split())
    files = [path for path in (ROOT / "results").rglob("*.json") if path.name != "reliability.json"]
    assert len(files) > 400
    unknown = {
        path.relative_to(ROOT / "results").as_posix(): unknown_code(
            json.loads(path.read_text()), history
        )
        for path in files
    }
    assert {name: why for name, why in unknown.items() if why} == {}


@pytest.mark.parametrize(
    ("content", "unknown"),
    [
        ({"code": {"commit": "a", "dirty": False, "resumed": ["b"]}}, []),
        ({"code": {"commit": "a", "dirty": True, "resumed": ["c"]}}, ["-dirty", "c"]),
        ({"commit": "a", "environment": {"resumed": [{"commit": "b"}, {"commit": "c"}]}}, ["c"]),
        ({"commit": "b", "runs": {"x": {"commit": "b-dirty"}}}, ["b-dirty"]),
        ({"code": {"commit": None}}, ["no commit"]),
    ],
)
def test_what_is_unknown(content, unknown):
    assert unknown_code(content, {"a", "b"}) == unknown
