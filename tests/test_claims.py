"""docs/evidence/claims.md, the pages of results and the README say what the records do."""

import json
import re
import tomllib
from pathlib import Path

import claims
import pytest

from neural_similarity_paper.tables import TABLES, make_report, read_costs, to_markdown
from neural_similarity_paper.tables.markdown import interval_text, signed_number
from neural_similarity_paper.tables.pages import judge_differences, our_result

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

ADAPTATIONS = {
    "adapt": "Ten hand signs, ResNet-20",
    "adapt-lite0": "Ten hand signs, EfficientNet-Lite0",
    "adapt-flowers": "Twelve flowers, EfficientNet-Lite0",
    "adapt-cifar": "Changed CIFAR-10, ResNet-20",
}
"""Sections of docs/evidence/results-adaptation.md by table."""


def read(file):
    return (ROOT / file).read_text("utf-8")


def section(title, end="### ", page="results"):
    text = read(f"docs/evidence/{page}.md").partition(f"## {title}")[2]
    return " ".join(text.partition(f"\n{end}")[0].split())


def panels(table, budget=1):
    return make_report(TABLES[table], budget=budget, results=RESULTS).panels


def clear_rows(panel, way):
    """The rows of a panel of table 4 that are clear of zero after adjustment."""
    verdicts = judge_differences(make_report(TABLES["4"], budget=0.125, results=RESULTS))
    found = {line.row.label: verdicts.get(line.baseline_difference) for line in panel.lines}
    values = {label: getattr(verdict, way) for label, verdict in found.items() if verdict}
    return {label for label, value in values.items() if value and value.holm < 0.05}


CLAIMS = tomllib.loads(read("docs/evidence/claims.toml"))["claim"]
ADAPTATION = read("docs/evidence/results-adaptation.md")


def test_the_page_is_what_the_script_writes():
    assert read("docs/evidence/claims.md") == claims.claims_page()


def test_commands_are_of_tests_and_tables_that_exist():
    """A `pytest FILES -k EXPRESSION` names files, and every word of it a test in them."""
    for claim in CLAIMS:
        program, *words = claim.get("command", "nsim").split()
        if program == "pytest":
            files, expression = " ".join(words).partition(" -k ")[::2]
            text = "".join(read(file) for file in files.split())
            names = " ".join(re.findall(r"def (test_\w+)", text))
            for word in re.findall(r"\w+", expression):
                assert word == "or" or word in names, claim["command"]
        elif words[:1] in (["table"], ["reproduce"]):
            assert words[1] in TABLES, claim["command"]


PAGES = {"table-4": ("4", 0.125), "costs": ("costs", 0.0625)}
PAGES |= {f"table-{table}": (table, 1) for table in ADAPTATIONS} | {"table-6": ("6", None)}


@pytest.mark.parametrize("page", PAGES)
def test_pages_of_tables_are_what_the_command_writes(page):
    table, budget = PAGES[page]
    costs = read_costs(ROOT / "benchmarks/recipes.json") if page in ("table-4", "costs") else None
    report = make_report(TABLES[table], budget=budget, results=RESULTS, costs=costs)
    text = read(f"docs/evidence/{page}.md")
    assert ("Steps are times of an update" in text) == bool(costs)
    picture = f"{page}.png" if (ROOT / f"docs/evidence/{page}.png").exists() else None
    assert text == to_markdown(report, picture)


@pytest.mark.parametrize("page", ["results", "results-adaptation"])
def test_intervals_are_counted(page):
    text, number = " ".join(read(f"docs/evidence/{page}.md").split()), r"[+−]?\d[\d.]*"
    found = re.findall(rf"\[{number}, {number}\]", text)
    assert f"page has {len(found)} intervals" in text


def test_headlines_of_recognition():
    panel, _ = panels("4", 0.125)
    lines = {line.row.label: line for line in panel.lines[1:] if line.records}
    told = section("On shorter schedules", "## ")
    for label, end in (
        ("static UNS", " points)"),
        ("dynamic DNS", ")"),
        ("dynamic UNS", ", one"),
        ("CNN++", ") included"),
    ):
        mean = signed_number(lines[label].baseline_difference.by_image.mean)
        assert f"{label} ({mean}{end}" in told
    assert len(lines["dynamic UNS"].baseline_difference.common) == 1
    assert all(line.baseline_difference.by_image.mean < 0 for line in lines.values())
    assert clear_rows(panel, "images") == lines.keys() - {"static DNS"}
    assert clear_rows(panel, "seeds") == set()


def test_headlines_of_cifar100():
    _, panel = panels("4", 0.125)
    lines = {line.row.label: line for line in panel.lines[1:] if line.records}
    told = section("On shorter schedules", "## ")
    for label in ("dynamic DNS", "CNN++", "static DNS", "static UNS"):
        change = lines[label].baseline_difference
        assert f"{label} ({signed_number(change.by_image.mean)}" in told
        assert len(change.common) == 3
    assert clear_rows(panel, "seeds") == {"dynamic DNS"}
    assert clear_rows(panel, "images") == {"dynamic DNS", "CNN++"}


def test_headlines_of_the_full_schedule():
    panel, _ = panels("4")
    lines = {line.row.label: line for line in panel.lines if line.records}
    assert {len(line.records) for line in lines.values()} == {1}
    told = section("In short", "## ")
    assert f"the plain CNN's error is {lines['CNN'].value[0]:.2f} %" in told
    for label in ("static DNS", "static UNS"):
        change = lines[label].baseline_difference.by_image
        assert f"{label} {signed_number(change.mean)}" in told
        assert not change.excludes_zero
        assert (change.high - change.low) / 2 < 0.5
    text = " ".join(read("docs/explanation/scratch.md").split())
    full, diagonal = (
        signed_number(lines[label].baseline_difference.by_image.mean)
        for label in ("static UNS", "static DNS")
    )
    assert (
        f"has {lines['CNN'].value[0]:.2f} % error; static full M changes that by {full} points "
        f"and static diagonal M by {diagonal}, one seed"
    ) in text


def test_the_page_says_what_a_layer_costs_on_a_gpu():
    (layer,) = re.findall(
        r"\| layer, forward and backward .*\*\* \((.*?)×\).*\((.*?)×\)",
        read("docs/evidence/gpu.md"),
    )
    text = " ".join(read("docs/explanation/cost.md").split())
    assert "M takes {} times a plain layer, a full one {} times".format(*layer) in text
    unfolded = re.findall(
        r"at batch 1 takes ([\d.]+) .*?at 96 pixels and ([\d.]+) .*?at batch 8 ([\d.]+);",
        " ".join(read("docs/evidence/performance.md").split()),
    )
    assert all(number in text for number in unfolded[0])


TIMES = {
    "condconv-4": "−0.44]; time {} |",
    "odconv-1": "one per image | time {}, of four kernels",
    "odconv-4": "of four kernels {};",
    "kernelwarehouse-1": "| time {}, of four times the cells",
    "kernelwarehouse-4": "of four times the cells {};",
    "fdconv": "| time {}; error",
    "involution-3": "time of 3×3 {}, of 7×7",
    "involution-7": "of 7×7 {};",
    "deformable": "with offsets {} of a plain layer",
    "ours, dynamic-diagonal": "Ours takes {} with a dynamic diagonal M",
    "ours, light-diagonal": "{} with a light predictor",
    "ours, pooled-diagonal": "{} with one M per image",
}
ERRORS = {
    "cnn": "plain {} %", "static-uns": "static full M {}", "pooled": "one M per image {}",
    "light-diagonal": "light diagonal M {}", "odconv-1": "`odconv-1` {}",
    "condconv-4": "`condconv-4` {}", "kernelwarehouse-1": "`kernelwarehouse-1` {}",
    "involution-3": "`involution-3` stays at chance, {}",
}  # fmt: skip


def test_the_page_says_what_other_layers_take_and_reach_in_a_short_schedule():
    rows = json.loads(read("benchmarks/epyc/rivals.json"))["rows"]
    text = " ".join(read("docs/evidence/layers.md").split())
    alone = [row for row in rows if row["group"]["what"] == "one layer"]
    for name, told in TIMES.items():
        times = [row["times"]["forward + backward"] for row in alone if row["name"] == name]
        low, high = sorted(time["ratio"] for time in times)
        assert told.format(f"{low:.1f} to {high:.1f}") in text
    found = {r["name"]: e for r in rows if (e := r["costs"].get("test_error")) is not None}
    assert found.keys() == ERRORS.keys()
    assert all(ERRORS[name].format(f"{error:.2f}") in text for name, error in found.items())


def test_what_light_predictors_are_worth():
    first, diagonal, full, *_ = panels("light", 1 / 64)
    (wide, ours), (wider, small) = full.lines, diagonal.lines
    plain, *_ = panels("light", 1 / 32)[0].lines
    errors = {line.row.recipe: our_result(line) for line in first.lines if line.records}
    text = " ".join(read("docs/evidence/layers.md").split())
    for told in (
        f"full M errs on {our_result(ours)} %, a wider plain network of the same time on",
        f"{our_result(wide)} %, {interval_text(ours.baseline_difference.by_image)} points by image",
        f"diagonal M on {our_result(small)} %, the wider network on {our_result(wider)} %",
        f"at {errors['cifar10-cnn']} %, is at {our_result(plain)} % after 2,000 updates",
        f"next to nothing, is at {errors['cifar10-static-uns']} %",
    ):
        assert told in text
    note = f"{our_result(ours)} % against {our_result(wide)} %; but the plain CNN-9 is at "
    assert note + our_result(plain).partition(" ")[0] in read("docs/evidence/costs.md")


def test_what_sharing_a_matrix_is_worth():
    for panel, name in zip(panels("sharing", 1 / 64), ("gains", "loses"), strict=True):
        shared, own = panel.lines
        part = section("M for each filter").partition(name)[2]
        assert f"{our_result(own)} % against {our_result(shared)}" in part
        change = own.baseline_difference
        for one in (change.by_seed, change.by_image, change.by_pooled_seeds):
            assert f"[{interval_text(one).partition('[')[2]}" in part
        assert (change.by_image.mean < 0) == (name == "gains")
        assert change.by_image.excludes_zero


def test_what_one_matrix_an_image_is_worth():
    told = section("One full M per image")
    (panel,) = panels("rivals", 1 / 32)
    (line,) = (line for line in panel.lines if line.row.recipe == "cifar10-pooled")
    change = line.baseline_difference
    assert len(change.common) == 3
    assert f"{our_result(line)} %, three seeds: {interval_text(change.by_seed)} points" in told
    assert f"[{interval_text(change.by_image).partition('[')[2]} by image" in told
    assert change.by_seed.excludes_zero
    assert interval_text(change.by_seed) in read("docs/evidence/layers.md")


def test_what_a_bound_is_worth():
    told = section("Predictors without bound")
    (panel,) = panels("bounds", 1 / 64)
    lines = {line.row.recipe.removeprefix("cifar10-dynamic-dns-"): line for line in panel.lines}
    for name in ("cnn-unbounded", "cnn-tanh", "cnn-sigmoid", "cnn-normalized", "plain"):
        change = lines[name].baseline_difference
        assert f" {lines[name].value[0]:.2f}" in told
        assert interval_text(change.by_image) in told
        assert change.by_pooled_seeds.excludes_zero == (name == "cnn-unbounded")


def test_what_the_pretrained_path_is_worth():
    told = section("A pretrained network (§4)")
    (panel,) = panels("pretrained", 1 / 64)
    lines = {line.row.recipe.removeprefix("cifar10-pretrained-"): line for line in panel.lines}
    assert f"({our_result(lines['cnn'])} %)" in told
    for name in ("static-dns", "static-uns", "dynamic-dns"):
        for line in (lines[name], lines[f"{name}-m"]):
            assert len(line.records) == 3
            assert our_result(line) in told
        change = lines[name].baseline_difference
        assert interval_text(change.by_seed) in told
        for one in (change.by_seed, change.by_image, change.by_pooled_seeds):
            assert one.excludes_zero


def test_what_shapes_that_move_are_worth():
    told = section("Learned kernel shapes that move")
    panel, _ = panels("shapes", 1 / 64)
    for line in panel.lines[1:]:
        (record,) = line.records
        taps = [tap for layer in record.learned.values() for tap in layer["taps"]]
        assert len(taps) == 81
        assert f" {sum(taps):.0f}" in told
        assert f"{record.summary['test_error_percent']:.2f}" in told
        change = line.baseline_difference.by_image
        assert interval_text(change) in told
        assert change.excludes_zero


@pytest.mark.long
def test_headlines_of_few_shot_learning():
    def points(first, second, classes="train"):
        found = claims.compare_runs(f"{first} > {second} @ 0.25 {classes}")
        return found.comparison.difference.by_image.mean

    told = section("On shorter schedules", "## ")
    text = to_markdown(make_report(TABLES["6"], budget=0.25, results=RESULTS))
    rows = [line.split(" | ") for line in text.splitlines()]
    table = {(row[1], row[2], row[8]): row for row in rows if row[0] == "| fine-tuning"}
    _, _, _, paper, ours, *_ = table["`mini-cnn4`", "5", "train"]
    gain = float(ours.split()[0]) - float(paper.split()[0])
    assert 8.5 < gain < 8.6
    assert "8.5 come with training" in told
    for classes in ("train", "train+val"):
        lost = points("mini-cnn4/static-nsn", "mini-cnn4/fine-tuning", classes)
        assert f"loses {-lost:.1f} points" in told
        assert 2.9 < points("mini-dynamic/fine-tuning", "mini-cnn4/fine-tuning", classes) < 4.5
    beside = points("mini-dynamic/fine-tuning", "mini-cnn4-64/fine-tuning", "train+val")
    assert f"with 80 classes {beside:.1f} ahead" in told


def test_the_page_of_adaptations_has_every_table():
    assert set(ADAPTATIONS) == {name for name in TABLES if name.startswith("adapt")}


def rows(table):
    """Of a table on the page: a way, how many numbers it trains, and its mean a panel."""
    found = {}
    for at, panel in enumerate(panels(table)):
        for line in panel.lines:
            if line.records:
                found.setdefault(line.row.label, {})[at] = line
    for label, lines in found.items():
        trained = next(iter(lines.values())).records[0].summary["trained"]
        cells = [our_result(lines[i]) if i in lines else "" for i in range(at + 1)]
        yield f"| {' | '.join((label, f'{trained:,}', *cells))} |"


@pytest.mark.parametrize(("table", "title"), ADAPTATIONS.items())
def test_every_way_of_adapting_that_has_records_is_told(table, title):
    told = ADAPTATION.partition(f"## {title}")[2].partition("\n## ")[0].splitlines()
    assert [line for line in told if re.match(r"\| .* \| [\d,]+ \|", line)] == list(rows(table))


COMPARISONS = {
    (this, beside): (status, points)
    for this, beside, status, points in re.findall(
        r"^\| `([\w-]+)` \| `([\w-]+)` \| ([^|]+) \| (\S+) ", ADAPTATION, re.M
    )
}


def test_comparisons_come_out_as_told():
    """Differences, adjusted p-values and verdicts of every table on the page."""
    tables = claims.adaptation_tables(ADAPTATION)
    assert len(COMPARISONS) > 60
    assert sum(table.count("\n") for table in tables) == len(COMPARISONS)
    assert list(tables) == list(tables.values())


def test_headlines_of_adaptations():
    status, points = COMPARISONS["rotation-30-full-statistics", "rotation-30-norm-statistics"]
    assert status == "holds by image only"
    assert f"ahead of batch normalisation by {points[1:4]} points by image" in section(
        "In short", "## "
    )
    for way in ("all", "lora", "oft", "ssf", "lora-statistics", "oft-statistics"):
        assert COMPARISONS["rotation-30-full-statistics", f"rotation-30-{way}"][0].startswith(
            "holds"
        )
    assert COMPARISONS["noise-25-full-statistics", "noise-25-norm-statistics"][0] == "unclear"


def test_the_page_quotes_adaptations():
    lines = {line.row.recipe: our_result(line) for p in panels("adapt") for line in p.lines}
    text = " ".join(read("docs/explanation/adaptation.md").split())
    ways = {
        "full": "static full M reaches {} %",
        "norm": "tuning {} %",
        "lora": "LoRA of rank 1 {} %",
        "oft": "diag-OFT {} %",
        "all": "full fine-tuning {} %",
        "head": "a linear probe reaches {} %",
    }
    for way, words in ways.items():
        assert words.format(lines[f"signs-{way}"].partition(" ")[0]) in text
