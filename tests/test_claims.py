"""docs/claims.md is what its script writes, and docs/results.md opens with what records say."""

import re
import tomllib
from pathlib import Path

import claims
import pytest

from neural_similarity.lab.cli.paper import FEW_SHOT
from neural_similarity.lab.paper import (
    TABLES,
    few_shot_markdown,
    make_report,
    read_costs,
    to_markdown,
)
from neural_similarity.lab.paper.markdown import interval, ours, signed

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
            assert words[1] in (*TABLES, *FEW_SHOT), claim["command"]


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


@pytest.mark.parametrize("table", ["adapt", "adapt-flowers", "adapt-cifar"])
def test_pages_of_adaptation_are_what_the_command_writes(table):
    report = make_report(TABLES[table], budget=1, results=RESULTS)
    page = (ROOT / f"docs/table-{table}.md").read_text("utf-8")
    assert page == to_markdown(report, f"table-{table}.png")


def in_short():
    text = (ROOT / "docs/results.md").read_text("utf-8")
    return " ".join(text.partition("## In short")[2].partition("## Quick start")[0].split())


def test_intervals_are_counted():
    text = (ROOT / "docs/results.md").read_text("utf-8")
    number = r"[+−]?\d[\d.]*"
    found = re.findall(rf"\[{number},\s+{number}\]", text)
    assert f"This page has {len(found)} of them, none adjusted" in " ".join(text.split())


def test_headlines_of_recognition():
    (panel, _) = make_report(TABLES["4"], budget=0.125, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines[1:]}
    means = {label: signed(line.by_image.mean) for label, line in lines.items()}
    told = in_short()
    assert f"static UNS ({means['static UNS']} points)" in told
    assert f"dynamic DNS ({means['dynamic DNS']})" in told
    assert f"dynamic UNS ({means['dynamic UNS']}, one seed)" in told
    assert len(lines["dynamic UNS"].common) == 1
    assert all(line.by_image.mean < 0 for line in lines.values())
    assert {label for label, line in lines.items() if not line.by_image.clear} == {"static DNS"}
    assert [label for label, line in lines.items() if line.by_seed and line.by_seed.clear] == [
        "CNN++"
    ]
    assert f"σ {panel.pooled[0]:.3f}, {panel.pooled[1]} degrees" in told
    pooled = {label for label, line in lines.items() if line.by_pooled_seeds.clear}
    assert pooled == {"CNN++", "static UNS", "dynamic DNS", "dynamic UNS"}


def test_headlines_of_cifar100():
    (_, panel) = make_report(TABLES["4"], budget=0.125, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines[1:] if line.records}
    told = in_short()
    for label in ("dynamic DNS", "CNN++", "static DNS", "static UNS"):
        assert f"{label} ({signed(lines[label].by_image.mean)}" in told
        assert len(lines[label].common) == 3
    both = {name for name, one in lines.items() if one.by_image.clear and one.by_seed.clear}
    assert both == {"dynamic DNS", "CNN++", "static DNS"}
    pooled = {label for label, line in lines.items() if line.by_pooled_seeds.clear}
    assert pooled == {"dynamic DNS", "CNN++"}
    assert claims._compare("cifar100-dynamic-dns < cifar100-cnn++ @ 0.125")[0] == "unclear"


def test_headlines_of_the_full_schedule():
    (panel, _) = make_report(TABLES["4"], budget=1, results=RESULTS).panels
    lines = {line.row.label: line for line in panel.lines if line.records}
    assert {len(line.records) for line in lines.values()} == {1}
    told = in_short()
    assert f"the plain CNN errs on {lines['CNN'].mean:.2f} %" in told
    for label in ("static DNS", "static UNS"):
        change = lines[label].by_image
        assert f"{label} {signed(change.mean)}" in told
        assert not change.clear
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
        numbers = [f"{line.mean:.2f} ± {line.deviation:.2f}" for line in (own, shared)]
        part = told.partition(name)[2]
        assert f"{numbers[0]} % against {numbers[1]}" in part
        for change in (own.by_seed, own.by_image, own.by_pooled_seeds):
            assert f"[{signed(change.low)}, {signed(change.high)}]" in part
        assert (own.by_image.mean < 0) == (name == "gains")
        assert own.by_image.clear


def test_what_one_matrix_an_image_is_worth():
    told = section("One full M an image")
    (panel,) = make_report(TABLES["rivals"], budget=1 / 32, results=RESULTS).panels
    (line,) = (line for line in panel.lines if line.row.recipe == "cifar10-pooled")
    assert len(line.common) == 3
    assert f"{ours(line)} %, three seeds: {interval(line.by_seed)} points" in told
    assert f"[{signed(line.by_image.low)}, {signed(line.by_image.high)}] by image" in told
    assert line.by_seed.clear
    assert interval(line.by_seed) in (ROOT / "docs/explanation/which.md").read_text("utf-8")


def test_what_a_bound_is_worth():
    told = section("Predictors without bound")
    (panel,) = make_report(TABLES["bounds"], budget=1 / 64, results=RESULTS).panels
    lines = {line.row.recipe.removeprefix("cifar10-dynamic-dns-"): line for line in panel.lines}
    for name in ("cnn-unbounded", "cnn-tanh", "cnn-sigmoid", "cnn-normalized", "plain"):
        assert f" {lines[name].mean:.2f}" in told
        change = lines[name].by_image
        assert f"{signed(change.mean)} [{signed(change.low)}, {signed(change.high)}]" in told
        assert lines[name].by_pooled_seeds.clear == (name == "cnn-unbounded")


def test_what_the_pretrained_path_is_worth():
    told = section("A pretrained network (§4)")
    (panel,) = make_report(TABLES["pretrained"], budget=1 / 64, results=RESULTS).panels
    lines = {line.row.recipe.removeprefix("cifar10-pretrained-"): line for line in panel.lines}
    assert f"({ours(lines['cnn'])} %)" in told
    for name in ("static-dns", "static-uns", "dynamic-dns"):
        both, alone = lines[name], lines[f"{name}-m"]
        assert {len(line.records) for line in (both, alone)} == {3}
        assert all(f"{line.mean:.2f} ± {line.deviation:.2f}" in told for line in (both, alone))
        assert interval(both.by_seed) in told
        assert both.by_seed.clear
        assert both.by_image.clear
        assert both.by_pooled_seeds.clear


def test_what_shapes_that_move_are_worth():
    told = section("Learned kernel shapes that move")
    panel, _ = make_report(TABLES["shapes"], budget=1 / 64, results=RESULTS).panels
    for line in panel.lines[1:]:
        (record,) = line.records
        taps = [tap for layer in record.learned.values() for tap in layer["taps"]]
        assert len(taps) == 81
        assert f" {sum(taps):.0f}" in told
        assert f"{record.summary['test_error_percent']:.2f}" in told
        change = line.by_image
        assert f"{signed(change.mean)} [{signed(change.low)}, {signed(change.high)}]" in told
        assert change.clear


def test_what_is_told_of_adaptation():
    """Every row's mean, deviation and trained numbers, and what is clear of the linear probe."""
    panel, *_ = make_report(TABLES["adapt"], budget=1, results=RESULTS).panels
    lines = {line.row.recipe.removeprefix("signs-"): line for line in panel.lines}
    text = (ROOT / "docs/results.md").read_text("utf-8")
    told = " ".join(text.partition("## Adaptation of")[2].partition("\n## ")[0].split())
    for name in set(lines) - {"dynamic"}:  # of which a seed diverged
        assert f"{ours(lines[name])} %" in told, name
    for name in ("norm", "full", "diagonal", "all", "ssf", "lora", "oft"):
        assert f"{lines[name].records[0].summary['trained']:,}" in told, name
    for name in ("bias", "ssf", "lora", "oft"):
        assert f"{interval(lines[name].by_seed)}" in told, name
        assert lines[name].by_seed.clear
        assert lines[name].by_image.clear
    verdicts = {"oft": "fails by image only", "lora": "unclear", "ssf": "holds by image only"}
    for name, verdict in verdicts.items():
        status, text = claims._compare(f"signs-full > signs-{name} @ 1")
        assert status == verdict
        numbers = re.findall(r"[−+][\d.]+|\[.*?\]", text) if name != "lora" else []
        assert all(number in told for number in numbers), (name, numbers)


def rows(report):
    """Of a table in docs/results.md: a way, how many numbers it trains, and its mean a panel."""
    found = {}
    for at, panel in enumerate(report.panels):
        for line in panel.lines:
            if line.records:
                found.setdefault(line.row.label, {})[at] = line
    for label, lines in found.items():
        trained = next(iter(lines.values())).records[0].summary["trained"]
        cells = [ours(lines[at]) if at in lines else "" for at in range(len(report.panels))]
        yield " ".join(f"| {' | '.join((label, f'{trained:,}', *cells))} |".split())


@pytest.mark.parametrize(
    ("table", "title", "count"),
    [
        ("adapt-cifar", "ResNet-20 on changed CIFAR-10", 20),
        ("adapt-flowers", "EfficientNet-Lite0 on twelve flowers", 11),
        ("adapt", "Hand signs by number of images", 4),
    ],
)
def test_what_is_told_of_adaptations(table, title, count):
    """A row for every way that has records, and comparisons as they come out."""
    told = section(title)
    report = make_report(TABLES[table], budget=1, results=RESULTS)
    shown = list(rows(report))
    assert len(shown) > 9
    assert all(row in told for row in shown), next(row for row in shown if row not in told)
    comparisons = re.findall(
        r"`([\w-]+ > [\w-]+)`: (.+?\[.+?\] by image, .+?\[.+?\] by seed)", told
    )
    assert len(comparisons) == count
    for comparison, rest in comparisons:
        status, text = claims._compare(f"{comparison} @ 1")
        assert rest == f"{status}, {text.partition(' (n')[0]}", comparison


def test_the_readme_quotes_adaptations():
    readme = (ROOT / "README.md").read_text("utf-8")
    lines = {
        line.row.recipe: line
        for table in ("adapt", "adapt-cifar")
        for panel in make_report(TABLES[table], budget=1, results=RESULTS).panels
        for line in panel.lines
    }
    changed, signs = (
        [ours(lines[f"{data}-{way}"]) for way in ways]
        for data, ways in (
            ("noise-25", ("full", "norm", "all")),
            ("signs", ("full", "oft", "all")),
        )
    )
    assert f"{lines['noise-25-nothing'].mean:.2f} % as it is" in readme
    assert f"| {changed[0]} % right |" in readme
    assert f"| {'; '.join(changed[1:])} % |" in readme
    assert f"| {'; '.join(signs)} % |" in readme


def test_the_headline_of_changed_images():
    """Of the weaker changes."""
    gains = []
    for change in ("noise-25", "rotation-30"):
        told = {
            way: claims._compare(f"{change}-full > {change}-{way} @ 1")
            for way in ("norm", "head", "bias", "ssf", "lora", "oft", "statistics", "all")
        }
        assert not any(status.startswith("fails") for status, _ in told.values())
        assert told["norm"][0] == "holds"
        gains.append(float(told["norm"][1].partition(" ")[0]))
    assert "by {:.1f} and {:.1f} points, and no way is ahead".format(*gains) in in_short()


@pytest.mark.long
def test_headlines_of_few_shot_learning():
    def difference(first, second, classes="train"):
        text = claims._compare(f"{first} > {second} @ 0.25 {classes}")[1]
        return float(text.partition(" ")[0].replace("−", "-"))

    told = in_short()
    rows = [line.split(" | ") for line in few_shot_markdown(RESULTS, 0.25).splitlines()]
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
