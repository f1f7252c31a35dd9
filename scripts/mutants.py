"""Plant bugs in the sources, run the related tests for each, and print the survivors.

    uv run python scripts/mutants.py                      # 12 bugs a module, 144 in all
    uv run python scripts/mutants.py --each 40 ops nn     # others of two modules
    uv run python scripts/mutants.py --show               # what was found so far

A bug is a change at one place: a comparison, an operator, a number, a condition; or a result, a
call, a raise, an argument that goes. Each runs in a fork that sees the changed module in memory;
no file changes, and processes that a test starts have no bug. Results go to build/mutants.jsonl,
from which the next call goes on: a bug is tried again only when its source has changed.
"""

import argparse
import ast
import hashlib
import importlib
import importlib.machinery
import json
import os
import random
import re
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "src/neural_similarity"
RESULTS = ROOT / "build" / "mutants.jsonl"
Paths = tuple[str, ...]
ROOMS = "ops nn conversion lab/tasks lab/train lab/cli lab/data"
HUB_TESTS = (
    "test_hub test_visualize nn/test_penalty lab/train/test_checkpoint lab/train/test_neighbours"
)
MODULES: dict[str, tuple[Paths, Paths]] = {
    **{name: ((f"{PACKAGE}/{name}",), (f"tests/{name}",)) for name in ROOMS.split()},
    "recipes": (
        (f"{PACKAGE}_paper/recipes", f"{PACKAGE}/lab/recipes"),
        ("tests/paper/test_recipes.py",),
    ),
    "paper": (
        tuple(f"{PACKAGE}_paper/{room}" for room in ("tables", "studies", "cli")),
        ("tests/paper", "tests/test_claims.py"),
    ),
    "theory": ((f"{PACKAGE}_paper/theory",), ("tests/paper/theory",)),
    "hub": (
        tuple(f"{PACKAGE}/{name}.py" for name in ("hub", "visualize", "regularize", "files")),
        tuple(f"tests/{name}.py" for name in HUB_TESTS.split()),
    ),
    "peft": ((f"{PACKAGE}/peft",), ("tests/tools/test_peft.py",)),
    "benchmarks": (("benchmarks",), ("tests/benchmarks",)),
}
"""Sources and tests of every module, files or folders."""
ELSEWHERE = ("triton", "native")
"""What runs on a GPU, or is C behind these lines."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn},
    **{ast.LtE: ast.Lt, ast.GtE: ast.Gt, ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In},
}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
SECONDS = 600
"""A bug that keeps the tests computing for longer counts as found; one that lets them wait, ten
times that: a busy machine takes longer."""
MEMORY = 12 << 30
"""A bug that lets the tests ask for more counts as found."""
SHARED = ("torch", "torchvision", "matplotlib.figure", "scipy.stats", "huggingface_hub", "tyro")
"""What all forks need, imported once."""
FILES = 3
"""Test files that run for a bug first: those that name most of what its source defines."""


@dataclass(frozen=True)
class Bug:
    """One changed place."""

    source: str
    """Path from the root."""
    place: int
    """Position of the node in `ast.walk`."""
    line: int
    what: str
    digest: str
    """Of the source: a bug of another text is another one."""


def changed_node(node: ast.AST) -> tuple[str, ast.AST] | None:
    """The name of the bug for a node and what takes the node's place, or None."""
    match node:
        case ast.Compare(ops=[op, *rest]):
            ops = [COMPARISONS[type(op)](), *rest]
            return "comparison", ast.Compare(node.left, ops, node.comparators)
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            return "operator", ast.BinOp(node.left, OPERATORS[type(op)](), node.right)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            return "and/or", ast.BoolOp(other, node.values)
        case ast.Constant(value=bool(value)):
            return "truth", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            return "number", ast.Constant(value + 1)
        case ast.If():
            return "condition", ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            return "no result", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            return "no call", ast.Pass()
        case ast.Raise():
            return "no error", ast.Pass()
        case ast.Call(keywords=[_, *_]):
            return "no argument", ast.Call(node.func, node.args, node.keywords[:-1])
    return None


def bugs_of_module(module: str) -> list[Bug]:
    """All bugs of a module, in the order in which they are tried: the same on every machine."""
    sources, _ = MODULES[module]
    found = [
        bug
        for path in _files_of(sources, "*.py")
        if not set(path.parts) & set(ELSEWHERE)
        for bug in _bugs_of(path)
    ]
    random.Random(module).shuffle(found)
    return found


def _files_of(paths: Paths, pattern: str) -> Iterator[Path]:
    """The files among `paths`, and those of the pattern below the folders."""
    for path in map(ROOT.joinpath, paths):
        yield from sorted(path.rglob(pattern)) if path.is_dir() else [path]


def _bugs_of(path: Path) -> Iterator[Bug]:
    text = path.read_text("utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    tree = ast.parse(text)
    quiet = set(_without_effect(tree))
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in quiet and (change := changed_node(node)):
            line = getattr(node, "lineno", 0)
            yield Bug(path.relative_to(ROOT).as_posix(), place, line, change[0], digest)


def _without_effect(tree: ast.AST) -> Iterator[int]:
    """Nodes that no test can see: annotations, what type checkers alone read."""
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            parts.append(node)
        for part in filter(None, parts):
            yield from map(id, ast.walk(part))


class _Planting(ast.NodeTransformer):
    def __init__(self, target: ast.AST) -> None:
        self.target = target

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.target:
            if found := changed_node(node):
                return ast.copy_location(found[1], node)
            raise ValueError(f"`target` must be a place of a bug, got {ast.unparse(node)}")
        return super().visit(node)


def planted_tree(bug: Bug) -> ast.Module:
    """The source's tree with the bug in it."""
    tree = ast.parse((ROOT / bug.source).read_text("utf-8"))
    target = list(ast.walk(tree))[bug.place]
    return ast.fix_missing_locations(_Planting(target).visit(tree))


def related_tests(bug: Bug, tests: Paths) -> list[str]:
    """The test files of a module that name most of what the bug's source defines.

    One that is named after the source comes first, in whatever module it is.
    """
    body = ast.parse((ROOT / bug.source).read_text("utf-8")).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stem = Path(bug.source).stem
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, [*names, stem]))})\b")
    own = sorted((ROOT / "tests").rglob(f"test_{stem}.py"))
    files = [*own, *(file for file in _files_of(tests, "test_*.py") if file not in own)]
    counts = {file: len(set(pattern.findall(file.read_text("utf-8")))) for file in files}
    ranked = sorted(files, key=lambda file: (file not in own, -counts[file]))
    return [str(file) for file in ranked[:FILES] if counts[file] or file == ranked[0]]


def survives_tests(bug: Bug, tests: Paths) -> bool:
    """Whether the nearest tests pass with a bug, and then all quick ones of its module."""
    near = related_tests(bug, tests)
    rest = [str(path) for path in _files_of(tests, "test_*.py") if str(path) not in near]
    return all(
        _passes(bug, files, marks)
        for files, marks in [
            (near, "not slow and not long"),
            (near, "long and not slow"),
            (rest, "not slow and not long"),
        ]
        if files
    )


def _passes(bug: Bug, tests: list[str], marks: str) -> bool:
    """Whether tests pass in a fork in which the module has the bug."""
    child = os.fork()
    if not child:
        _run(bug, tests, marks)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )


def _run(bug: Bug, tests: list[str], marks: str) -> None:
    code = 9
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(10 * SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        source = str(ROOT / bug.source)
        compiled = compile(planted_tree(bug), source, "exec")
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(self, name):
            return compiled if Path(self.path).samefile(source) else original(self, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # pyright: ignore
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        options = ["-o", "addopts=", "--import-mode=importlib", "-m", marks, "-x", "-q"]
        code = int(pytest.main([*options, "-p", "no:cacheprovider", "--tb=no", *tests]))
    finally:
        os._exit(code)


def main() -> None:
    """Try what has not been tried, and show the survivors."""
    parser = argparse.ArgumentParser(description="Plant bugs and see whether tests find them.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=list(MODULES))
    parser.add_argument("--each", type=int, default=12, help="bugs a module")
    parser.add_argument("--show", action="store_true", help="run nothing")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for module in SHARED:
        importlib.import_module(module)
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    results = {json.dumps(line["bug"]): line["survives"] for line in map(json.loads, lines)}
    chosen = []
    for module in options.modules:
        for bug in bugs_of_module(module)[: options.each]:
            key = json.dumps(asdict(bug))
            if key not in results and not options.show:
                results[key] = survives_tests(bug, MODULES[module][1])
                RESULTS.parent.mkdir(exist_ok=True)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"bug": asdict(bug), "survives": results[key]}) + "\n")
            if key in results:
                chosen.append((bug, results[key]))
    alive = [bug for bug, lives in chosen if lives]
    for bug in alive:
        text = (ROOT / bug.source).read_text("utf-8").splitlines()[bug.line - 1].strip()
        sys.stdout.write(f"{bug.source}:{bug.line}: {bug.what}: {text}\n")
    sys.stdout.write(f"{len(chosen)} bugs, {len(alive)} survivors\n")


if __name__ == "__main__":
    main()
