"""Reports as files, tables and as the page of docs, and the commands that make them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import compare, formulations, networks, performance
from benchmarks.__main__ import BENCHES, _run, main
from benchmarks.case import Case
from benchmarks.measure import Timing
from benchmarks.networks import texts_of
from benchmarks.options import without_folders
from benchmarks.report import SIZES, Report, Row, by_group, read_report, to_markdown, write_report
from benchmarks.targets import TARGETS
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.recipe import recipe_to_json

QUICK = {
    "operators": ("--dtype", "fp32"),
    "training": ("--dtype", "fp32", "--similarity", "static-diagonal"),
    "widths": ("--similarity", "diagonal"),
    "layers": ("--similarity", "diagonal"),
    "networks": (),
    "price": ("--network", "ResNet-18", "--dtype", "bf16"),
    "recipes": (),
    "inference": ("--dtype", "fp32", "--similarity", "static-diagonal"),
    "exported": (),
}
ENVIRONMENT = {
    "neural_similarity": "0.1.0",
    "commit": "0123456789abcdef",
    "device": "cpu",
    "cpu": "A CPU",
    "torch": "2.15",
    "command": "python -m benchmarks by hand",
}


def at(seconds, ratio=1.0, reach=0.0, spread=0.01):
    low, high = ratio - reach, ratio + reach
    return Timing(seconds=seconds, spread=spread, ratio=ratio, low=low, high=high, rounds=9)


def report(name, *rows, **changes):
    found = Report(bench=name, environment=ENVIRONMENT, quick=False, others=0.02, rows=rows)
    return replace(found, **changes)


def operator(name, kind="diagonal", saved=None, **changes):
    group = {"similarity": kind, "dtype": "fp32", "channels": 32, "size": 8, "batch": 2}
    costs = {} if saved is None else {"saved_bytes": saved, "peak_bytes": 3 * 2**20, "macs": 2e6}
    row = Row(group=group | {"threads": 2}, name=name, error=2e-7, costs=costs)
    return replace(row, **changes)


BASE = operator(
    "nn.Conv2d", saved=128.0, baseline=True, times={"forward": at(0.001), "both": at(0.002)}
)
OURS = operator(
    "ours, compiled",
    saved=164.0,
    times={"forward": at(0.0015, 1.5, 0.1), "both": at(0.004, 2.0, 0.25)},
)
WRONG = operator("rival", problem="wrong: error 1.0e+00", wrong=True, error=1.0)


CNN, STATIC = "cifar10-cnn", "cifar10-static-dns"


def cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_files_give_back_what_was_written(tmp_path):
    before = report("operators", BASE, OURS, WRONG, operator("absent", problem="not measured: no"))
    path = write_report(before, tmp_path / "new")
    assert path == tmp_path / "new" / "operators.json"
    assert read_report(path) == before


@pytest.mark.parametrize("content", ["[]", "{", '{"rows": []}', '{"rows": [{"times": {"a": 1}}]}'])
def test_damaged_files_are_named(content, tmp_path):
    path = tmp_path / "operators.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"operators.json cannot be read as a benchmark's report"):
        read_report(path)


def test_table_by_hand():
    text = to_markdown(report("operators", BASE, OURS, WRONG))
    assert "### diagonal, fp32, channels 32, size 8, batch 2, threads 2" in text
    assert cells(text, "nn.Conv2d")[1:] == ["1.00", "1", "2.00", "1", "128", "3.0", "2.00", "2e-07"]
    ours = cells(text, "ours, compiled")
    assert ours[1:5] == ["1.50", "1.50 [1.40, 1.60]", "4.00", "2.00 [1.75, 2.25]"]
    assert cells(text, "rival")[1:] == ["wrong: error 1.0e+00", *[""] * 7]


def test_doubtful_times_say_so():
    quiet = report("operators", BASE, OURS)
    assert quiet.noise is None
    assert "not a measurement" in replace(quiet, quick=True).noise
    assert "other processes kept 0.50 cores busy" in replace(quiet, others=0.5).noise
    assert replace(quiet, others=None).noise is None
    restless = replace(BASE, times={"forward": at(1.0, spread=0.3)})
    noisy = report("operators", restless, OURS)
    assert noisy.noise == "not quiet: a baseline's times have quartiles 30% apart"
    assert to_markdown(noisy).startswith(f"**{noisy.noise}**")
    # The baseline's times alone are to be steady; others may have caches to fill.
    assert report("operators", BASE, replace(OURS, times={"f": at(1.0, spread=0.3)})).noise is None


def test_rows_are_split_by_what_is_no_size():
    full = operator("ours, compiled", kind="full")
    larger = replace(BASE, group=BASE.group | {"batch": 8})
    parts = by_group([BASE, OURS, full, larger], without=SIZES)
    assert list(parts) == ["diagonal, fp32, threads 2", "full, fp32, threads 2"]
    assert parts["diagonal, fp32, threads 2"] == [BASE, OURS, larger]


def network(what, name, ratio, **changes):
    group = {"what": what, "dtype": "fp32", "batch": 128, "threads": 2}
    return Row(group=group, name=name, times={"step": at(0.1 * ratio, ratio)}, **changes)


@pytest.fixture
def page(tmp_path):
    """The page of reports that are saved, with the command that wrote it."""

    def write(*reports):
        for one in reports:
            write_report(one, tmp_path)
        return performance.page(tmp_path, "python -m benchmarks page")

    return write


def test_the_page_of_performance_is_what_the_command_writes(tmp_path, monkeypatch):
    """Limits, verdicts and processors are those of the reports at hand."""
    root = performance.TEXT.parents[1]
    monkeypatch.chdir(root)
    page = tmp_path / "performance.md"
    assert main(["page", "--out", str(page)]) == 0
    known = (root / "docs" / "evidence" / "performance.md").read_text("utf-8")
    assert page.read_text("utf-8").replace(str(page), "docs/evidence/performance.md") == known


def test_the_page_names_commands_targets_and_what_is_missing(page):
    rows = network("updates", "plain", 1.0, baseline=True)
    text = page(report("operators", BASE, OURS, WRONG), report("training", rows, quick=True))
    assert text.startswith("# Performance\n\n## Targets\n\n")  # figures first
    assert "\n\n## Method\n\n`python -m benchmarks page` writes this page" in text
    assert "`python -m benchmarks by hand` on A CPU, torch 2.15; code 0123456789ab;" in text
    assert "| 41 floats/position | reached |" in text
    assert "not measured |\n" in text
    assert "**training: a quick run to try the command out, not a measurement.**" in text
    assert "Measured while freed blocks of more than 32 MiB went back" in text
    assert "Measured when no predictor had batch normalisation" in text
    assert cells(text, "ours, compiled") == ["ours, compiled", "1.50 / 2.00"]
    assert cells(text, "nn.Conv2d")[1] == "1 ms / 2 ms"
    assert cells(text, "rival")[1] == "wrong: error 1.0e+00"
    assert "| ours, compiled | 164; 3.0 |" in text
    assert "## Inference" not in text
    assert "Host, ms." not in text


def test_the_page_of_a_gpu_has_its_name_and_the_hosts_time(page, tmp_path):
    gpu = ENVIRONMENT | {"device": "NVIDIA H200"}
    rows = [replace(row, costs=row.costs | {"host_seconds": 1.25e-4}) for row in (BASE, OURS)]
    text = page(report("operators", *rows, environment=gpu))
    assert "on NVIDIA H200, torch 2.15" in text
    assert "Host, ms." in text
    assert "\n| ours, compiled | 0.125 |\n" in text
    write_report(report("operators", BASE, OURS), tmp_path / "cpu")
    assert "| NVIDIA H200 |" in performance.summary([tmp_path / "cpu", tmp_path], "")


RECIPE_SETTINGS = {name: recipe_to_json(RECIPES[name]) for name in (CNN, STATIC)}
CHANGED = {name: one | {"similarity": "static-full"} for name, one in RECIPE_SETTINGS.items()}
NAMES = ("static-diagonal", "dynamic-dns", "dynamic-dns-half-width")
OTHER_PREDICTOR = {"dynamic-dns": "Dynamic(Diagonal(), predictor=CNN())"}


@pytest.mark.parametrize(
    ("bench", "facts", "left_out"),
    [
        ("recipes", {"recipes": RECIPE_SETTINGS}, ()),
        ("recipes", {"recipes": RECIPE_SETTINGS | {STATIC: CHANGED[STATIC]}}, (STATIC,)),
        ("recipes", {"recipes": RECIPE_SETTINGS | {CNN: CHANGED[CNN]}}, (CNN, STATIC)),
        ("training", {"similarities": texts_of(NAMES) | OTHER_PREDICTOR}, ("dynamic-dns",)),
    ],
)
def test_the_page_leaves_out_what_has_other_settings_by_now(page, bench, facts, left_out):
    names = (CNN, STATIC) if bench == "recipes" else ("plain", *NAMES, "static-diagonal, folded")
    rows = [network("updates", name, 1.5, baseline=name == names[0]) for name in names]
    facts = ENVIRONMENT | facts | {"keeps_memory": True, "norms": "torch"}
    text = page(report(bench, *rows, environment=facts))
    assert [name for name in names if f"| {name} |" not in text] == list(left_out)
    told = ", ".join(f"`{name}`" for name in left_out)
    assert (f"have other settings by now: {told}." in text) == bool(left_out)
    assert ("Left out" in text) == bool(left_out)
    assert "Measured while" not in text


def test_a_machine_is_with_its_matrix_unit_or_without():
    for amx, words in ((True, "A CPU with AMX,"), (False, "A CPU without AMX,"), (None, "A CPU, ")):
        assert report("training", environment=ENVIRONMENT | {"amx": amx}).machine.startswith(words)


def test_a_page_of_nothing_is_refused_and_the_old_one_stays(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before")
    assert main(["page", "--results", str(tmp_path / "no"), "--out", str(page)]) == 1
    assert "`results` must hold what a benchmark saved" in capsys.readouterr().err
    assert page.read_text() == "before"


def test_every_benchmark_has_a_section():
    assert set(performance.HEADINGS) - {"rivals"} == set(BENCHES) == set(QUICK)
    assert {target.bench for target in TARGETS} <= set(QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_commands_print_and_save(name, tmp_path, capsys, monkeypatch):
    few = ("cifar10-cnn", "cifar10-cnn++", "cifar10-dynamic-dns-shared")
    monkeypatch.setattr(networks, "COMPARED", few)
    args = [name, "--quick", "--device", "cpu", "--out", str(tmp_path), *QUICK[name]]
    assert main(args) == 0
    told = capsys.readouterr()
    saved = read_report(tmp_path / f"{name}.json")
    assert (saved.bench, saved.quick) == (name, True)
    assert saved.rows
    assert all(row.times for row in saved.rows)
    assert told.out.startswith(to_markdown(saved))
    assert "do not rely on these times: a quick run" in told.err
    page = tmp_path / "docs" / "page.md"
    assert main(["page", "--results", str(tmp_path), "--out", str(page)]) == 0
    assert page.read_text().startswith("# Performance")
    assert f"## {performance.HEADINGS[name]}" in page.read_text()


def test_what_is_cut_off_keeps_what_it_measured(tmp_path, monkeypatch):
    def rows(_):
        yield operator("plain")
        raise KeyboardInterrupt

    monkeypatch.setitem(BENCHES, "widths", (rows, BENCHES["widths"][1]))
    with pytest.raises(KeyboardInterrupt):
        _run("widths", ["--quick", "--device", "cpu", "--out", str(tmp_path)])
    assert [one.name for one in read_report(tmp_path / "unfinished/widths.json").rows] == ["plain"]
    assert not (tmp_path / "widths.json").exists()


def turned(tensor):
    """The same number, but its gradient has the other sign."""
    return 2 * tensor.detach() - tensor


WRONG_OPERANDS = {
    "values": lambda x, weight, m: (1.01 * x, weight, m),
    "gradient of x": lambda x, weight, m: (turned(x), weight, m),
    "gradient of the kernel": lambda x, weight, m: (x, turned(weight), m),
    "gradient of M": lambda x, weight, m: (x, weight, turned(m)),
    "not a number": lambda x, weight, m: (x * torch.nan, weight, m),
    "one tap": lambda x, weight, m: (x, weight, m * (torch.arange(9) != 4).view(9, 1, 1)),
}


@pytest.mark.parametrize("change", WRONG_OPERANDS.values(), ids=WRONG_OPERANDS)
def test_what_is_wrong_has_no_time_and_the_command_fails(change, tmp_path, capsys, monkeypatch):
    planted = {"planted": lambda *operands: formulations.unfold(*change(*operands))}
    monkeypatch.setitem(formulations.BY_KIND, "diagonal", planted)
    args = ["--quick", "--dtype", "fp32", "--similarity", "diagonal", "--out", str(tmp_path)]
    assert main(["operators", *args, "--device", "cpu"]) == 1
    told = capsys.readouterr()
    assert cells(told.out, "planted")[1].startswith("wrong: error ")
    assert set(cells(told.out, "planted")[2:]) == {""}
    assert "nsim: planted is wrong: error " in told.err
    assert "host, ms" not in told.out  # a CPU is the host
    rows = read_report(tmp_path / "operators.json").rows
    assert [row.name for row in rows if row.wrong or not row.times] == ["planted"]


def test_rows_are_measured_with_their_threads(monkeypatch):
    seen = []
    monkeypatch.setattr(
        compare, "_timed_rows", lambda *_: seen.append(torch.get_num_threads()) or []
    )
    compare.compare({}, [], Case(runtime=choose_runtime("cpu", "fp32"), threads=(2, 1)))
    assert seen == [2, 1]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["operator"], "no benchmark is named 'operator'; did you mean 'operators'?"),
        (["operators", "--rounds", "2"], "`rounds` must be at least 3, got 2"),
        (["operators", "--threads", "-1"], "`threads` must be at least 0, got (-1,)"),
        (["operators", "--batch", "0"], "`batch` must be at least 1, got (0,)"),
        (["recipes", "--similarity", "static-full"], "`similarity` is not an option of recipes"),
        (["training", "--size", "8"], "`size` is not an option of training"),
        (["training", "--similarity", "static"], "no similarity is named 'static'; did you mean"),
        (["training", "--similarity", "full"], "no similarity is named 'full'; did you mean"),
        (["operators", "--similarity", "static-full"], "no similarity is named 'static-full'"),
        (["training", "--roundz", "3"], "--rounds"),
    ],
)
def test_wrong_command_lines(args, message, capsys):
    assert main([*args]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", [*QUICK, "page"])
def test_help_has_examples(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"python -m benchmarks {name}" in capsys.readouterr().out


RECORDS = sorted((Path(__file__).parents[2] / "benchmarks").glob("**/*.json"))


def test_records_name_no_folder_of_a_machine():
    command = (
        "python -m benchmarks rivals --code '/home/a b/rivals' --data=/data/sets --out epyc/new"
    )
    told = "python -m benchmarks rivals --code rivals --data=sets --out epyc/new"
    assert without_folders(command) == told
    assert len(RECORDS) > 10
    for path in RECORDS:
        content = json.loads(path.read_text())
        if path.name != "targets.json":  # limits, of no machine
            command = content["environment"].get("command", "")
            assert without_folders(command) == command, path.name
