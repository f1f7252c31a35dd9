"""The bugs that scripts/mutants.py plants."""

import ast
from itertools import islice
from pathlib import Path

import mutants
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_bugs_change_one_source_each_and_compile():
    for module, (_, tests) in mutants.MODULES.items():
        found = mutants.bugs(module)
        assert len(found) >= 60
        assert found == mutants.bugs(module)
        for bug in islice(found, 5):
            tree = mutants.planted(bug)
            compile(tree, bug.source, "exec")
            text = (ROOT / bug.source).read_text("utf-8")
            assert ast.dump(tree) != ast.dump(ast.parse(text))
            files = mutants.related(bug, tests)
            assert 1 <= len(files) <= mutants.FILES


def test_what_was_tried_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "RESULTS", tmp_path / "mutants.jsonl")
    assert mutants.known() == {}
    mutants.RESULTS.write_text('{"bug": {"line": 3}, "survives": true}\n')
    assert mutants.known() == {'{"line": 3}': True}


def a_bug_of(source):
    return next(bug for bug in mutants.bugs("ops") if bug.source.endswith(f"ops/{source}"))


def test_a_test_file_of_the_sources_name_comes_first_in_whatever_room():
    files = mutants.related(a_bug_of("flops.py"), ("tests/ops",))
    assert files[0] == str(ROOT / "tests/nn/test_flops.py")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "passes"),
    [("def test(): pass", True), ("", True), ("def test(): assert 0", False), ("1 / 0", False)],
)
def test_a_bug_is_found_by_what_fails_alone(tmp_path, text, passes):
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert mutants._passes(a_bug_of("blocks.py"), [str(file)], "not slow") is passes
