"""What scripts/release.py finds missing in an archive."""

import release

LICENCES = ("LICENSE", "src/neural_similarity/lab/data/embedded/LICENSE")


def whole():
    sources = [
        p for p in release.PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    ]
    wheel = {f"neural_similarity/{p.relative_to(release.PACKAGE).as_posix()}" for p in sources}
    sdist = {f"src/{name}" for name in wheel} | {"LICENSE", "README.md", "pyproject.toml"}
    about = {f"neural_similarity-0.2.0.dist-info/licenses/{name}" for name in LICENCES}
    return wheel | about, sdist


def test_what_is_missing_or_too_much_is_named():
    wheel, sdist = whole()
    assert release.problems(wheel, sdist) == []
    wheel -= {"neural_similarity/py.typed", "neural_similarity-0.2.0.dist-info/licenses/LICENSE"}
    wheel |= {"tests/test_release.py"}
    sdist -= {"LICENSE", "src/neural_similarity/ops/native/operators.c"}
    assert release.problems(wheel, sdist) == [
        "the wheel lacks neural_similarity/py.typed",
        "the wheel lacks the licence LICENSE",
        "the wheel has tests/test_release.py",
        "the sdist lacks LICENSE",
        "the sdist lacks src/neural_similarity/ops/native/operators.c",
    ]
