"""Reports as files, tables, pictures and as the page of docs, and the commands that make them."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import compare, few_shot, formulations, loops, networks, performance
from benchmarks.__main__ import BENCHES, _run, main
from benchmarks.case import Case
from benchmarks.measure import Timing
from benchmarks.networks import texts
from benchmarks.plots import SIZES
from benchmarks.report import Report, Row, grouped, read, to_markdown, write
from benchmarks.targets import TARGETS
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.recipe import recipe_to_json

QUICK = {
    "operators": ("--dtype", "fp32"),
    "scaling": ("--threads", "1"),
    "training": ("--dtype", "fp32", "--similarity", "static-diagonal"),
    "widths": ("--similarity", "diagonal"),
    "layers": ("--similarity", "diagonal"),
    "networks": (),
    "recipes": (),
    "inference": ("--dtype", "fp32", "--similarity", "static-diagonal"),
    "fewshot": (),
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
    return Timing(
        seconds=seconds, spread=spread, ratio=ratio, low=ratio - reach, high=ratio + reach, rounds=9
    )


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


def cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_files_give_back_what_was_written(tmp_path):
    before = report("operators", BASE, OURS, WRONG, operator("absent", problem="not measured: no"))
    path = write(before, tmp_path / "new")
    assert path == tmp_path / "new" / "operators.json"
    assert read(path) == before


@pytest.mark.parametrize("content", ["[]", "{", '{"rows": []}', '{"rows": [{"times": {"a": 1}}]}'])
def test_damaged_files_are_named(content, tmp_path):
    path = tmp_path / "operators.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"operators.json cannot be read as a benchmark's report"):
        read(path)


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
    parts = grouped([BASE, OURS, full, larger], without=SIZES)
    assert list(parts) == ["diagonal, fp32, threads 2", "full, fp32, threads 2"]
    assert parts["diagonal, fp32, threads 2"] == [BASE, OURS, larger]


def network(what, name, ratio, **changes):
    group = {"what": what, "dtype": "fp32", "batch": 128, "threads": 2}
    return Row(group=group, name=name, times={"step": at(0.1 * ratio, ratio)}, **changes)


def growing(name, value, by, milliseconds):
    group = {"sweep": f"by {by}", "dtype": "fp32", "channels": 32, "size": 32, "batch": 4}
    times = {"forward + backward": at(milliseconds / 1e3)}
    costs = {"peak_bytes": 100.0 * value}
    return Row(group=group | {"threads": 1, by: value}, name=name, times=times, costs=costs)


def found(name, *rows):
    """The lines of the targets that a report of these rows has something on."""
    made = report(name, *rows)
    lines = [target.line(made) for target in TARGETS if target.bench == name]
    return [line for line in lines if line[3] != "not measured"]


def test_saved_floats_against_their_targets():
    eager = operator("ours, eager", saved=184.0)
    others = [operator("TensorFlow form", saved=9e9), operator("ours, static diagonal", saved=9e9)]
    lines = found("operators", BASE, OURS, eager, *others)
    (line,) = [line for line in lines if "floats" in line[1]]
    assert line[1:] == ("≤ 45 floats/position", "41 floats/position to 46 floats/position", NOT)
    (line,) = found("operators", operator("ours, eager", kind="full", saved=452.0))
    assert line[1:] == ("≤ 120 floats/position", "113 floats/position", "reached")


NOT = "**not reached**"


def timed(name, forward, both, *, baseline=False, channels=32, dtype="fp32"):
    group = {"similarity": "diagonal", "dtype": dtype, "channels": channels, "size": 8, "batch": 2}
    times = {"forward": at(1e-3, forward), "forward + backward": at(3e-3, both)}
    return Row(group=group, name=name, baseline=baseline, times=times)


def test_ratios_of_operators_against_their_targets():
    rows = [timed("nn.Conv2d", 1.0, 1.0, baseline=True), timed("ours, compiled", 1.5, 2.0)]
    rows += [timed("ours, compiled", 2.6, 2.0, channels=64), timed("TensorFlow form", 8.0, 6.0)]
    rows += [timed("deform_conv2d", 30.0, 20.0), timed("ours, eager", 1.0, 1.0, dtype="bf16")]
    rows += [
        timed("nn.Conv2d", 1.0, 1.0, **other) for other in ({"channels": 64}, {"dtype": "bf16"})
    ]
    wide, ours, both = (
        "32 and 64 and 128 channels",
        "diagonal, compiled, fp32",
        "forward + backward",
    )
    lines = {text: f"{seen} {verdict}" for text, _, seen, verdict in found("operators", *rows)}
    assert lines == {
        f"{ours}, forward, {wide} ÷ `nn.Conv2d`": f"1.5 to 2.6 {NOT}",
        f"{ours}, {both}, 32 channels ÷ `nn.Conv2d`": "2 reached",
        f"{ours}, {both}, 64 and 128 channels ÷ `nn.Conv2d`": "2 reached",
        f"diagonal, eager, bf16, forward, {wide} ÷ `nn.Conv2d`": "1 reached",
        f"diagonal, eager, bf16, {both}, {wide} ÷ `nn.Conv2d`": "1 reached",
        f"TensorFlow form ÷ {ours}, {both}, {wide}": "3 reached",
        f"deform_conv2d ÷ {ours}, {both}, 32 and 64 channels": f"10 {NOT}",
    }


def test_eager_operators_beside_compiled_ones():
    rows = [timed("nn.Conv2d", 1.0, 1.0, baseline=True), timed("ours, compiled", 2.0, 2.0)]
    rows += [timed("ours, eager", 3.0, 3.5)]
    lines = {text: (seen, verdict) for text, _, seen, verdict in found("operators", *rows)}
    assert lines["diagonal, fp32, forward, eager ÷ compiled"] == ("1.5", "reached")
    assert lines["diagonal, fp32, forward + backward, eager ÷ compiled"] == ("1.75", NOT)


def test_layers_and_whole_networks_against_their_targets():
    def at_width(name, ratio, macs, **changes):
        row = timed(name, ratio, ratio, **changes)
        return replace(row, group=row.group | {"layout": "NCHW"}, costs={"macs": macs})

    rows = [at_width("nn.Conv2d", 1.0, 100.0, baseline=True), at_width("ours", 1.6, 101.0)]
    rows += [at_width("ours, layer with predictor", 2.6, 200.0)]
    lines = {text: (seen, verdict) for text, _, seen, verdict in found("widths", *rows)}
    assert lines["diagonal, fp32, forward, widths of a ResNet, NCHW ÷ `nn.Conv2d`"] == ("1.6", NOT)
    beyond = "the layer, likewise, forward, NCHW, over the ratio of its multiplications"
    assert lines[beyond] == ("1.3", NOT)
    rows = several(
        "updates of ResNet-18, NCHW", plain=1.0, **{"static-full": 1.06, "dynamic-diagonal": 2.0}
    )
    rows = [replace(row, group=row.group | {"batch": 32}) for row in rows]
    assert [line[2:] for line in found("networks", *rows)] == [("1.06", NOT), ("2", "reached")]


def several(what, **ratios):
    return [network(what, name, ratio) for name, ratio in ratios.items()]


UPDATES = several("updates", plain=1.0, **{"static-full": 1.06, "dynamic-diagonal": 4.1})
LOOPS = several(loops.WHAT, **{"bare loop": 1.0, "nsim train": 1.25})
FOLDED = several("", plain=1.0, **{"static-full": 1.5, "static-full, folded": 1.01})
FEW_SHOT = [
    *several(few_shot.META, ours=1.25),
    *(replace(row, costs={few_shot.SPEED: 499.0}) for row in several(few_shot.KEPT, ours=9.0)),
    network(few_shot.META, "higher", 1.0, baseline=True),
]
# 4 times the batch in 4 and 8 times the time, 4 times the positions in 2 times.
GROWTH = [growing("ours", batch, "batch", ms) for batch, ms in ((16, 32), (1, 1), (4, 4))]
GROWTH += [growing("ours", size, "size", ms) for size, ms in ((32, 2), (64, 4))]


@pytest.mark.parametrize(
    ("bench", "rows", "expected"),
    [
        ("training", UPDATES, ["4.1 reached", f"1.06 {NOT}"]),
        ("training", LOOPS, [f"≥ 95 % 80 % {NOT}"]),
        ("training", [LOOPS[0], *several(loops.WHAT, **{"nsim train": 1.02})], ["98 % reached"]),
        ("fewshot", FEW_SHOT, [f"≥ 95 % 80 % {NOT}", f"≥ 500 499 {NOT}"]),
        ("inference", FOLDED, ["1.01 reached"]),
        ("scaling", GROWTH, [f"0.5 to 2 {NOT}", "reached"]),
    ],
)
def test_reports_against_their_targets(bench, rows, expected):
    lines = [" ".join(line) for line in found(bench, *rows)]
    assert len(lines) == len(expected)
    assert all(line.endswith(end) for line, end in zip(lines, expected, strict=True))


def test_the_page_names_commands_targets_and_what_is_missing(tmp_path):
    write(report("operators", BASE, OURS, WRONG), tmp_path)
    write(report("training", network("updates", "plain", 1.0, baseline=True), quick=True), tmp_path)
    text = performance.page(
        tmp_path, tmp_path.parent / "docs" / "page.md", "python -m benchmarks page"
    )
    assert text.startswith("# Performance\n\n`python -m benchmarks page` writes this page")
    assert "`python -m benchmarks by hand` on A CPU, torch 2.15; code 0123456789ab;" in text
    assert "| 41 floats/position | reached |" in text
    assert "not measured |\n" in text
    assert "**training: a quick run to try the command out, not a measurement.**" in text
    assert cells(text, "ours, compiled") == ["ours, compiled", "1.50 / 2.00"]
    assert cells(text, "nn.Conv2d")[1] == "1 ms / 2 ms"
    assert cells(text, "rival")[1] == "wrong: error 1.0e+00"
    assert "| ours, compiled | 164; 3.0 |" in text
    assert f"![operators](../{tmp_path.name}/operators.png)" in text
    assert "## Inference" not in text


def test_the_page_of_a_gpu_has_its_name_and_the_hosts_time(tmp_path):
    gpu, other = ENVIRONMENT | {"device": "NVIDIA H200"}, tmp_path / "cpu"
    rows = [replace(row, costs=row.costs | {"host_seconds": 1.25e-4}) for row in (BASE, OURS)]
    write(report("operators", *rows, environment=gpu), tmp_path)
    write(report("operators", BASE, OURS), other)
    text, without = (
        performance.page(folder, tmp_path / "p.md", "") for folder in (tmp_path, other)
    )
    assert "on NVIDIA H200, torch 2.15" in text
    assert "Host, ms." in text
    assert [line for line in text.splitlines() if line == "| ours, compiled | 0.125 |"]
    assert "Host, ms." not in without
    assert "| NVIDIA H200 |" in performance.summary([other, tmp_path], "")


def test_one_page_shows_several_processors_and_marks_what_is_not_reached(tmp_path):
    for name, ratio, cpu in (("a", 2.0, "FAST"), ("b", 9.0, "SLOW")):
        (tmp_path / name).mkdir()
        rows = [network("", "plain", 1.0, baseline=True), network("", "static-full, folded", ratio)]
        environment = ENVIRONMENT | {"cpu": cpu}
        write(report("inference", *rows, environment=environment), tmp_path / name)
    page = tmp_path / "page.md"
    folders = [str(tmp_path / name) for name in "ab"]
    assert main(["page", "--results", *folders, "--out", str(page)]) == 0
    text = page.read_text()
    assert "| target | limit | FAST | SLOW |" in text
    said = performance.TEXT.read_text(encoding="utf-8").split("## Targets\n\n")[1]
    assert text.endswith(said.split("\n\n## ")[0] + "\n")
    assert "| inference of CNN-9, folded ÷ plain | ≤ 1.03 | **2** | **9** |" in text
    assert (
        "| the same, dynamic full | ≤ 120 floats/position | not measured | not measured |" in text
    )


@pytest.mark.parametrize(
    ("changed", "left_out"),
    [
        ((), ()),
        (("cifar10-static-dns",), ("cifar10-static-dns",)),
        (("cifar10-cnn",), ("cifar10-cnn", "cifar10-static-dns")),
    ],
)
def test_the_page_leaves_out_recipes_that_have_changed(tmp_path, changed, left_out):
    names = ("cifar10-cnn", "cifar10-static-dns")
    configs = {name: recipe_to_json(RECIPES[name]) for name in names}
    for name in changed:
        configs[name]["similarity"] = "static-full"
    rows = [network("updates by recipe", names[0], 1.0, baseline=True)]
    rows += [network("updates by recipe", names[1], 1.5)]
    write(report("recipes", *rows, environment=ENVIRONMENT | {"recipes": configs}), tmp_path)
    text = performance.page(tmp_path, tmp_path / "page.md", "python -m benchmarks page")
    assert [name for name in names if f"| {name} |" not in text] == list(left_out)
    assert ("Left out" in text) == bool(left_out)
    assert all(f"`{name}`" in text for name in left_out)


def test_the_page_leaves_out_similarities_that_have_changed(tmp_path):
    names = ("static-diagonal", "dynamic-dns", "dynamic-dns-half-width")
    told = texts(names) | {"dynamic-dns": "Dynamic(Diagonal(), predictor=CNN())"}
    rows = [network("updates of CNN-9", "plain", 1.0, baseline=True)]
    rows += [network("updates of CNN-9", name, 1.5) for name in names]
    rows += [network("updates of CNN-9", "static-diagonal, folded", 1.0)]
    facts = ENVIRONMENT | {"similarities": told, "keeps_memory": True}
    write(report("training", *rows, environment=facts), tmp_path)
    text = performance.page(tmp_path, tmp_path / "page.md", "python -m benchmarks page")
    assert "have other settings by now: `dynamic-dns`. The" in text
    assert [name for name in names if f"| {name} |" not in text] == ["dynamic-dns"]
    assert "Measured w" not in text


def test_the_page_says_what_was_otherwise_when_a_report_was_made(tmp_path):
    write(report("training", network("updates", "plain", 1.0, baseline=True)), tmp_path)
    text = performance.page(tmp_path, tmp_path / "page.md", "python -m benchmarks page")
    assert "Measured while freed blocks of more than 32 MiB went back" in text
    assert "Measured when no predictor had batch normalisation" in text


def test_a_machine_is_with_its_matrix_unit_or_without():
    for amx, words in (
        (True, "A CPU with AMX, "),
        (False, "A CPU without AMX, "),
        (None, "A CPU, "),
    ):
        assert report("training", environment=ENVIRONMENT | {"amx": amx}).machine.startswith(words)


def test_a_page_of_nothing_is_refused_and_the_old_one_stays(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before")
    assert main(["page", "--results", str(tmp_path / "no"), "--out", str(page)]) == 1
    assert "`results` must hold what a benchmark saved, such as operators.json" in (
        capsys.readouterr().err
    )
    assert page.read_text() == "before"


def test_every_benchmark_has_a_section():
    assert set(performance.HEADINGS) == set(BENCHES) == set(QUICK)
    assert {target.bench for target in TARGETS} <= set(QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_commands_print_save_and_draw(name, tmp_path, capsys, monkeypatch):
    few = ("cifar10-cnn", "cifar10-cnn++", "cifar10-dynamic-dns-shared")
    monkeypatch.setattr(networks, "COMPARED", few)
    args = [name, "--quick", "--device", "cpu", "--out", str(tmp_path), *QUICK[name]]
    assert main(args) == 0
    told = capsys.readouterr()
    saved = read(tmp_path / f"{name}.json")
    assert (saved.bench, saved.quick) == (name, True)
    assert saved.rows
    assert all(row.times for row in saved.rows)
    assert told.out.startswith(to_markdown(saved))
    assert "do not rely on these times: a quick run" in told.err
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
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
    assert [one.name for one in read(tmp_path / "unfinished/widths.json").rows] == ["plain"]
    assert not (tmp_path / "widths.json").exists()


def test_a_wrong_result_has_no_time_and_the_command_fails(tmp_path, capsys, monkeypatch):
    planted = {"planted": lambda x, weight, m: (x + 0 * m.sum()) * weight.sum()}
    monkeypatch.setitem(formulations.BY_KIND, "diagonal", planted)
    args = ["--quick", "--dtype", "fp32", "--similarity", "diagonal", "--out", str(tmp_path)]
    assert main(["operators", *args, "--device", "cpu"]) == 1
    told = capsys.readouterr()
    assert cells(told.out, "planted")[1].startswith("wrong: error ")
    assert set(cells(told.out, "planted")[2:]) == {""}
    assert "nsim: planted is wrong: error " in told.err
    rows = json.loads((tmp_path / "operators.json").read_text())["rows"]
    assert [row["times"] for row in rows if row["name"] == "planted"] == [{}]


def test_rows_are_measured_with_their_threads(monkeypatch):
    seen = []
    monkeypatch.setattr(compare, "_compared", lambda *_: seen.append(torch.get_num_threads()) or [])
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
