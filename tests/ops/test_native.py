"""The compiled operators compute what the plain ones do."""

import ctypes
import platform
import shlex

import pytest
import torch
from against_float64 import error
from kernel_laws import Case, check
from problems import KINDS, PROBLEMS, Problem
from torch.testing import assert_close

from neural_similarity.functional import similarity_conv2d, similarity_conv3d
from neural_similarity.ops import declines
from neural_similarity.ops.backend import NARROW, chosen
from neural_similarity.ops.native import compiling

both_kinds = pytest.mark.parametrize("kind", KINDS)
X = torch.zeros(1, 2, 4, 4)


@pytest.fixture(autouse=True)
def _compiled(request):
    reason = declines("compiled", X, 9)
    if reason and "without" not in request.node.name:
        pytest.skip(reason)


FLOATS = torch.float32, torch.bfloat16
WIDTHS = [
    Case(Problem(f"wide-{channels}", channels=channels, size=(5, 6)), layout="contiguous")
    for channels in ((32, 16), (64, 8), (50, 3), (16, 1))
]
BLOCKS = [
    (Case(Problem("blocks", channels=channels, groups=2), ("channels", count)), dtype)
    for channels, count, dtype in (
        ((24, 6), 3, torch.float32),
        ((24, 6), 4, torch.float32),
        ((64, 64), 1, torch.bfloat16),
        ((128, 64), 2, torch.bfloat16),
        ((128, 64), 4, torch.bfloat16),
    )
]
LAYOUTS = [
    Case(Problem(layout, channels=(16, 8), size=(7, 6), batch=3), layout=layout)
    for layout in ("channels_last", "strided", "expanded")
]
LINE = Case(Problem("line", (1, 4), size=(1, 9), padding=(0, 0), groups=2), line=True)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((Case(problem, layout="contiguous"), torch.float32) for problem in PROBLEMS),
        *((case, dtype) for case in WIDTHS for dtype in FLOATS),
        *((case, torch.float32) for case in (*LAYOUTS, LINE)),
        *BLOCKS,
    ],
    ids=str,
)
@both_kinds
def test_errors_are_at_most_twice_those_of_the_eager_form(case, dtype, kind):
    check(case, kind, dtype, backend="compiled")


@both_kinds
def test_three_dimensions(kind):
    operands = torch.randn(2, 4, 3, 5, 4), torch.randn(6, 2, 2, 1, 3)
    m = torch.randn(2, *[6] * (1 + (kind == "full")), 2, 5, 2)
    results = []
    for backend, dtype in (("compiled", torch.float32), ("reference", torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (*operands, m)]
        y = similarity_conv3d(*leaves, groups=2, backend=backend)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for ours, right in zip(*results, strict=True):
        assert error(ours, right) < 1e-5


def test_threads_share_the_work(monkeypatch):
    case = Case(Problem("threads", channels=(16, 8), batch=5))
    operands = case.operands("full")
    outgoing = torch.randn_like(case(*operands, backend="reference"))

    def found():
        return case.results(operands, outgoing, torch.float32, "compiled")

    one = found()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = found()
    assert_close(three, one, rtol=1e-5, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(three, found(), strict=True))


def test_not_a_number_stays_one():
    x = torch.full((1, 32, 3, 3), float("nan"), dtype=torch.bfloat16)
    weight, m = torch.ones(1, 32, 1, 1, dtype=torch.bfloat16), torch.ones(1, 1, 3, 3)
    assert similarity_conv2d(x, weight, m, backend="compiled").isnan().all()


@pytest.mark.parametrize(
    ("x", "taps", "reason"),
    [
        (X.double(), 9, "float64, neither float32 nor bfloat16"),
        (X.to("meta"), 9, "is on meta, not on the CPU"),
        (X, 81, "has 81 taps, more than 64"),
    ],
)
def test_it_says_why_it_declines(x, taps, reason):
    assert reason in declines("compiled", x, taps)


def test_a_refusal_names_the_backend_and_the_reason():
    with pytest.raises(ValueError, match=r"the compiled backend declines .*float64, neither"):
        similarity_conv2d(X.double(), X.double(), torch.ones(1, 16, 1, 1), backend="compiled")


@pytest.fixture
def fresh():
    """The library is looked for again, before and after."""
    compiling.library.cache_clear()
    yield
    compiling.library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_eager_runs(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    assert declines("compiled", X, 9) == "there is no C compiler (GCC, as cc, gcc or CC)"
    weight, m = torch.randn(3, 2, 3, 3), torch.randn(1, 9, 4, 4)
    y = similarity_conv2d(X, weight, m, padding=1)
    assert_close(y, similarity_conv2d(X, weight, m, padding=1, backend="eager"))


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "_FLAGS", ("--no-such-option",))
    assert "fails:" in declines("compiled", X, 9)


@pytest.mark.usefixtures("fresh")
def test_compilers_are_tried_in_turn(monkeypatch, tmp_path):
    """On many machines cc is clang."""
    tried = []

    def compiles(compiler, _path):
        tried.append(shlex.join(compiler))
        return f"{tried[-1]} fails: no such builtin"

    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setenv("CC", "ccache gcc-13")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(compiling, "_compile", compiles)
    assert declines("compiled", X, 9) == "; ".join(f"{c} fails: no such builtin" for c in tried)
    assert tried == ["/bin/ccache gcc-13", "/bin/cc", "/bin/gcc"]


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_cannot_be_run_is_no_error(monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling.subprocess, "run", full)
    assert "cannot run: No space left on device" in declines("compiled", X, 9)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the switches are those of x86")
@pytest.mark.parametrize("without", ["-mno-amx-bf16", "-mno-avx512bf16", "-mno-avx512f"])
@pytest.mark.usefixtures("fresh")
def test_lesser_processors(without, monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    switches = ["-mno-amx-bf16", "-mno-avx512bf16", "-mno-avx512f"]
    used = switches[: switches.index(without) + 1]
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, *used))
    for dtype in FLOATS:
        for kind in KINDS:
            check(WIDTHS[2], kind, dtype, backend="compiled")


@pytest.fixture
def quickly(monkeypatch):
    """The library is made without optimisation, in a quarter of the time."""
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, "-O0"))


@pytest.mark.usefixtures("fresh", "quickly")
def test_a_second_process_finds_the_library(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    assert declines("compiled", X, 9) is None
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    compiling.library.cache_clear()
    monkeypatch.setattr(compiling, "_compile", None)
    assert isinstance(compiling.library(), ctypes.CDLL)


@pytest.mark.usefixtures("fresh", "quickly")
def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiling.Path, "home", lambda: blocked)
    assert declines("compiled", X, 9) is None


def test_the_cache_is_where_the_system_has_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling._cache_folder() == tmp_path / "neural_similarity"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(compiling.Path, "home", lambda: tmp_path)
    assert compiling._cache_folder() == tmp_path / ".cache" / "neural_similarity"


def test_without_a_home_the_cache_is_gone_with_the_process(monkeypatch):
    """As in a container of an unknown user."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    kept = []
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(compiling.Path, "home", no_home)
    monkeypatch.setattr(compiling.atexit, "register", lambda *call, **how: kept.append((call, how)))
    folder = compiling._cache_folder()
    assert folder.is_dir()
    (((remove, *what), how),) = kept
    remove(*what, **how)
    assert not folder.exists()


def test_other_sources_are_another_library(monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(compiling, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "_compile", lambda _, path: built.append(path) or "not built")
    compiling._built("cc")
    monkeypatch.setattr(compiling, "_SOURCES", compiling._SOURCES[:-1])
    compiling._built("cc")
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    compiling._built("cc")
    assert len(set(built)) == 3


def test_a_library_that_cannot_be_finished_is_none(monkeypatch, tmp_path):
    """It is compiled beside its place and moved there whole, so another process finds no part."""
    seen = []

    def interrupted(command, **_):
        seen.append(compiling.Path(command[command.index("-o") + 1]))
        seen[0].write_bytes(b"a part")
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.subprocess, "run", interrupted)
    path = tmp_path / "operators.so"
    with pytest.raises(KeyboardInterrupt):
        compiling._compile("cc", path)
    assert seen[0] != path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("channels", "groups", "backend"),
    [
        (NARROW - 1, 1, "compiled"),
        (2 * NARROW, 2, "compiled"),
        (2 * (NARROW - 1), 2, "eager"),
        (8, 8, "eager"),
    ],
)
def test_narrow_groups_run_eagerly(channels, groups, backend):
    """Depthwise kernels are faster in the eager form; one group of few channels is not."""
    assert chosen("auto", torch.zeros(1, channels, 4, 4), 9, groups) == backend
