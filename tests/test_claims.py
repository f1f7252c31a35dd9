"""docs/claims.md is what its script writes, and docs/results.md opens with what records say."""

import re
import tomllib
from pathlib import Path

import claims
import pytest

from neural_similarity.lab.paper import TABLES, make_report, read_costs, to_markdown
from neural_similarity.lab.paper.markdown import interval_text, our_result, signed_number

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

CLAIMS = tomllib.loads((ROOT / "docs/claims.toml").read_text("utf-8"))["claim"]


def test_the_page_is_what_the_script_writes():
    assert (ROOT / "docs/claims.md").read_text("utf-8") == claims.page()


def test_commands_are_of_tests_and_tables_that_exist():
    """A `pytest FILES -k EXPRESSION` names files, and every word of it a test in them."""
    for claim in CLAIMS:
        program, *words = claim.get("command", "nsim").split()
        if program == "pytest":
            files, expression = " ".join(words).partition(" -k ")[::2]
            text = "".join((ROOT / file).read_text("utf-8") for file in files.split())
            names = " ".join(re.findall(r"def (test_\w+)", text))
            for word in re.findall(r"\w+", expression):
                assert word == "or" or word in names, claim["command"]
        elif words[:1] in (["table"], ["reproduce"]):
            assert words[1] in TABLES, claim["command"]


@pytest.mark.parametrize(
    ("low", "high", "wanted", "verdict"),
    [(-2, -1, -1, "holds"), (-2, -1, 1, "fails"), (-2, 1, 1, "unclear"), (1, 2, 1, "holds")],
)
def test_verdicts(low, high, wanted, verdict):
    assert claims._verdict(claims.Interval((low + high) / 2, low, high), wanted) == verdict


@pytest.mark.parametrize(
    ("comparison", "status"),
    [
        ("cifar10-cnn++ < cifar10-cnn @ 0.125", "holds"),
        ("cifar10-static-uns < cifar10-cnn @ 0.125", "holds by image only"),
        ("cifar10-static-dns < cifar10-cnn @ 0.125", "unclear"),
        ("cifar10-static-dns < cifar10-cnn++ @ 0.125", "fails"),
        ("cifar100-static-dns < cifar100-cnn @ 0.125", "holds"),
        ("cifar100-dynamic-uns < cifar100-cnn @ 0.125", "untested"),
        ("mini-cnn4/static-nsn > mini-cnn4/fine-tuning @ 0.25 train", "fails by task only"),
    ],
)
def test_comparisons(comparison, status):
    assert claims._compare(comparison)[0] == status


@pytest.mark.parametrize(
    ("page", "table", "budget"), [("table-4", "4", 0.125), ("costs", "costs", 0.0625)]
)
def test_pages_of_tables_are_what_the_command_writes(page, table, budget):
    costs = read_costs(ROOT / "benchmarks/recipes.json")
    report = make_report(TABLES[table], budget=budget, results=RESULTS, costs=costs)
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    assert "Steps are times of an update" in text
    assert text == to_markdown(report, f"{page}.png")


def in_short():
    text = (ROOT / "docs/results.md").read_text("utf-8")
    return " ".join(text.partition("## In short")[2].partition("## Quick start")[0].split())


@pytest.mark.parametrize("page", ["results", "results-adaptation"])
def test_intervals_are_counted(page):
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    number = r"[+−]?\d[\d.]*"
    found = re.findall(rf"\[{number},\s+{number}\]", text)
    assert f"page has {len(found)} of them, none adjusted" in " ".join(text.split())


def test_headlines_of_recognition():
    (panel, _) = make_report(TABLES["4"], budget=0.125, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines[1:]}
    means = {
        label: signed_number(line.baseline_difference.by_image.mean)
        for label, line in lines.items()
    }
    told = in_short()
    assert f"static UNS ({means['static UNS']} points)" in told
    assert f"dynamic DNS ({means['dynamic DNS']})" in told
    assert f"dynamic UNS ({means['dynamic UNS']}, one seed)" in told
    assert len(lines["dynamic UNS"].baseline_difference.common) == 1
    assert all(line.baseline_difference.by_image.mean < 0 for line in lines.values())
    assert {
        label
        for label, line in lines.items()
        if not line.baseline_difference.by_image.excludes_zero
    } == {"static DNS"}
    assert [
        label
        for label, line in lines.items()
        if line.baseline_difference.by_seed and line.baseline_difference.by_seed.excludes_zero
    ] == ["CNN++"]
    assert f"σ {panel.pooled_deviation[0]:.3f}, {panel.pooled_deviation[1]} degrees" in told
    pooled = {
        label
        for label, line in lines.items()
        if line.baseline_difference.by_pooled_seeds.excludes_zero
    }
    assert pooled == {"CNN++", "static UNS", "dynamic DNS", "dynamic UNS"}


def test_headlines_of_cifar100():
    (_, panel) = make_report(TABLES["4"], budget=0.125, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines[1:] if line.records}
    told = in_short()
    for label in ("dynamic DNS", "CNN++", "static DNS", "static UNS"):
        assert f"{label} ({signed_number(lines[label].baseline_difference.by_image.mean)}" in told
        assert len(lines[label].baseline_difference.common) == 3
    both = {
        name
        for name, one in lines.items()
        if one.baseline_difference.by_image.excludes_zero
        and one.baseline_difference.by_seed.excludes_zero
    }
    assert both == {"dynamic DNS", "CNN++", "static DNS"}
    pooled = {
        label
        for label, line in lines.items()
        if line.baseline_difference.by_pooled_seeds.excludes_zero
    }
    assert pooled == {"dynamic DNS", "CNN++"}
    assert claims._compare("cifar100-dynamic-dns < cifar100-cnn++ @ 0.125")[0] == "unclear"


def test_headlines_of_the_full_schedule():
    (panel, _) = make_report(TABLES["4"], budget=1, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines if line.records}
    assert {len(line.records) for line in lines.values()} == {1}
    told = in_short()
    assert f"the plain CNN's error is {lines['CNN'].mean_value:.2f} %" in told
    for label in ("static DNS", "static UNS"):
        change = lines[label].baseline_difference.by_image
        assert f"{label} {signed_number(change.mean)}" in told
        assert not change.excludes_zero
        assert (change.high - change.low) / 2 < 0.5


def section(title):
    text = (ROOT / "docs/results.md").read_text("utf-8")
    return " ".join(text.partition(f"### {title}")[2].partition("\n### ")[0].split())


def test_what_sharing_a_matrix_is_worth():
    told = section("M for each filter")
    for panel, name in zip(
        make_report(TABLES["sharing"], budget=1 / 64, results=RESULTS).panels,
        ("gains", "loses"),
        strict=True,
    ):
        shared, own = panel.lines
        numbers = [f"{line.mean_value:.2f} ± {line.value_deviation:.2f}" for line in (own, shared)]
        part = told.partition(name)[2]
        assert f"{numbers[0]} % against {numbers[1]}" in part
        for change in (
            own.baseline_difference.by_seed,
            own.baseline_difference.by_image,
            own.baseline_difference.by_pooled_seeds,
        ):
            assert f"[{signed_number(change.low)}, {signed_number(change.high)}]" in part
        assert (own.baseline_difference.by_image.mean < 0) == (name == "gains")
        assert own.baseline_difference.by_image.excludes_zero


def test_what_one_matrix_an_image_is_worth():
    told = section("One full M an image")
    (panel,) = make_report(TABLES["rivals"], budget=1 / 32, results=RESULTS).panels
    (line,) = (line for line in panel.lines if line.row.recipe == "cifar10-pooled")
    assert len(line.baseline_difference.common) == 3
    assert (
        f"{our_result(line)} %, three seeds: "
        f"{interval_text(line.baseline_difference.by_seed)} points" in told
    )
    images = line.baseline_difference.by_image
    assert f"[{signed_number(images.low)}, {signed_number(images.high)}] by image" in told
    assert line.baseline_difference.by_seed.excludes_zero
    assert interval_text(line.baseline_difference.by_seed) in (
        ROOT / "docs/explanation/which.md"
    ).read_text("utf-8")


def test_what_a_bound_is_worth():
    told = section("Predictors without bound")
    (panel,) = make_report(TABLES["bounds"], budget=1 / 64, results=RESULTS).panels
    lines = {line.row.recipe.removeprefix("cifar10-dynamic-dns-"): line for line in panel.lines}
    for name in ("cnn-unbounded", "cnn-tanh", "cnn-sigmoid", "cnn-normalized", "plain"):
        assert f" {lines[name].mean_value:.2f}" in told
        change = lines[name].baseline_difference.by_image
        assert (
            f"{signed_number(change.mean)} "
            f"[{signed_number(change.low)}, {signed_number(change.high)}]" in told
        )
        assert lines[name].baseline_difference.by_pooled_seeds.excludes_zero == (
            name == "cnn-unbounded"
        )


def test_what_the_pretrained_path_is_worth():
    told = section("A pretrained network (§4)")
    (panel,) = make_report(TABLES["pretrained"], budget=1 / 64, results=RESULTS).panels
    lines = {line.row.recipe.removeprefix("cifar10-pretrained-"): line for line in panel.lines}
    assert f"({our_result(lines['cnn'])} %)" in told
    for name in ("static-dns", "static-uns", "dynamic-dns"):
        both, alone = lines[name], lines[f"{name}-m"]
        assert {len(line.records) for line in (both, alone)} == {3}
        assert all(
            f"{line.mean_value:.2f} ± {line.value_deviation:.2f}" in told for line in (both, alone)
        )
        assert interval_text(both.baseline_difference.by_seed) in told
        assert both.baseline_difference.by_seed.excludes_zero
        assert both.baseline_difference.by_image.excludes_zero
        assert both.baseline_difference.by_pooled_seeds.excludes_zero


def test_what_shapes_that_move_are_worth():
    told = section("Learned kernel shapes that move")
    panel, _ = make_report(TABLES["shapes"], budget=1 / 64, results=RESULTS).panels
    for line in panel.lines[1:]:
        (record,) = line.records
        taps = [tap for layer in record.learned.values() for tap in layer["taps"]]
        assert len(taps) == 81
        assert f" {sum(taps):.0f}" in told
        assert f"{record.summary['test_error_percent']:.2f}" in told
        change = line.baseline_difference.by_image
        assert (
            f"{signed_number(change.mean)} "
            f"[{signed_number(change.low)}, {signed_number(change.high)}]" in told
        )
        assert change.excludes_zero


@pytest.mark.long
def test_headlines_of_few_shot_learning():
    def difference(first, second, classes="train"):
        text = claims._compare(f"{first} > {second} @ 0.25 {classes}")[1]
        return float(text.partition(" ")[0].replace("−", "-"))

    told = in_short()
    text = to_markdown(make_report(TABLES["6"], budget=0.25, results=RESULTS))
    rows = [line.split(" | ") for line in text.splitlines()]
    table = {(row[1], row[2], row[8]): row for row in rows if row[0] == "| fine-tuning"}
    _, _, _, paper, ours, *_ = table["`mini-cnn4`", "5", "train"]
    gain = float(ours.split()[0]) - float(paper.split()[0])
    assert 8.5 < gain < 8.6
    assert "8.5 come with training" in told
    for classes in ("train", "train+val"):
        lost = difference("mini-cnn4/static-nsn", "mini-cnn4/fine-tuning", classes)
        assert f"loses {-lost:.1f} points" in told
        ahead = difference("mini-dynamic/fine-tuning", "mini-cnn4/fine-tuning", classes)
        assert 2.9 < ahead < 4.5
    beside = difference("mini-dynamic/fine-tuning", "mini-cnn4-64/fine-tuning", "train+val")
    assert f"with 80 classes {beside:.1f} ahead" in told
