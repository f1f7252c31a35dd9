"""Write the tables of the pages that answer questions, and those of README, from the records.

    python scripts/answers.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a test compares every one.
"""

import json
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from neural_similarity_paper.studies.adapt_map import CHANGES, MAP
from neural_similarity_paper.studies.adapt_study import CellReport
from neural_similarity_paper.studies.adapt_unlabelled import STREAM
from neural_similarity_paper.studies.end import EPOCHS, ArmKey, error_text, judge_all, read_errors
from neural_similarity_paper.studies.restore import CAMERAS, RESTORE
from neural_similarity_paper.tables import TABLES, make_report
from neural_similarity_paper.tables.markdown import interval_text, markdown_rows, signed_number
from neural_similarity_paper.tables.report import Difference
from neural_similarity_paper.tables.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
TEXTS = ROOT / "README.md", *sorted((ROOT / "docs").glob("e*/*.md"))
PAGES = [page for page in TEXTS if "<!-- table: " in page.read_text("utf-8")]
"""Those of evidence and explanation that have a table."""
LABELS_SHOWN = 10
"""Labelled images of each class in the pictures and tables of the changes."""
WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
METHODS, PAIRS, NETWORKS, ENDED, ASKED, HEADS = (
    WORDS[name] for name in ("methods", "pairs", "networks", "ended", "asked", "heads")
)
RESTORED, DEBLURRED = "-24-", "mini-imagenet"
"""What names of shown sheets have between data set and pairs of images; the data of the text."""
OURS, REFERENCE, TURNED = "full", "all", "rotation-30"


@cache
def changed_cells() -> tuple[CellReport, ...]:
    """The cells of the map with `LABELS_SHOWN` labels that have run."""
    return tuple(c for c in MAP.read(RESULTS) if c.cell.facts["labels"] == LABELS_SHOWN)


def methods() -> dict[str, str]:
    """Those of `METHODS` that have run in all cells."""
    runs = [cell.runs for cell in changed_cells()]
    return {way: name for way, name in METHODS.items() if all(way in own for own in runs)}


def parameters_trained(cell: CellReport, way: str) -> int:
    """How many parameters a method trains."""
    return cell.runs[way][0]["trained"]


def all_accuracies(cell: CellReport, default: bool = False) -> dict[str, float]:
    """Accuracy in percent of every method, over draws, at tuned or at default learning rates."""
    correct = cell.correct[1 if default else 0]
    return {way: 100 * right.double().mean().item() for way, right in correct.items()}


def accuracies(cell: CellReport, default: bool = False) -> dict[str, float]:
    """Those of the methods that train."""
    return {
        way: value
        for way, value in all_accuracies(cell, default).items()
        if parameters_trained(cell, way)
    }


def mean_accuracies(default: bool = False) -> dict[str, float]:
    """Those of the methods that are shown, over the changes."""
    cells = [all_accuracies(cell, default) for cell in changed_cells()]
    return {way: fmean(cell[way] for cell in cells) for way in methods()}


def methods_table() -> str:
    """Methods by their mean accuracy over the changes."""
    means, default, rows = mean_accuracies(), mean_accuracies(True), []
    accuracies_of = [*map(all_accuracies, changed_cells())]
    for way in sorted(means, key=lambda way: -means[way]):
        gaps = [found[way] - found[REFERENCE] for found in accuracies_of]  # Negative is behind.
        trained = f"{parameters_trained(changed_cells()[0], way):,}"
        near = f"{sum(gap >= -1 for gap in gaps)} of {len(gaps)}"
        scores = f"{means[way]:.1f}", f"{default[way]:.1f}"
        rows.append((METHODS[way], trained, *scores, near, signed_number(min(gaps))))
    return markdown_rows(HEADS["methods"], *rows)


def map_text() -> str:
    """What the map asked, and the answers for M and for M added to what people train."""
    default, tuned = mean_accuracies(True), mean_accuracies()
    both = {way: f"{default[way]:.1f} % ({tuned[way]:.1f} %)" for way in (OURS, "norm", REFERENCE)}
    return fill(
        f"A ResNet-20 of CIFAR-10 adapts to {len(changed_cells())} changes of its images, such as "
        f"noise or rotation, with ten labels per class. Mean accuracy with "
        f"default (tuned) learning rates: {both[OURS]} for M, which trains 0.6 % of the "
        f"parameters, {both['norm']} for batch normalisation and {both[REFERENCE]} for full "
        f"fine-tuning. Without training, updated running statistics reach "
        f"{tuned['statistics']:.1f} %. With tuned learning rates, **adding M to another method** "
        f"(TSA is residual adapters) helps significantly with {clear_text(1)}, and hurts with "
        f"{clear_text(-1)}."
    )


def added_text() -> str:
    """The mean of what M adds to each method, and what training M first costs."""
    default = [cell.leads[1][way] for cell in changed_cells() for way in PAIRS]
    after = [cell.leads[0]["full-then-all"] for cell in changed_cells()]
    hurts = sum(lead.p_all < LEVEL and lead.interval.mean < 0 for lead in after)
    helps = sum(lead.p_all < LEVEL and lead.interval.mean > 0 for lead in default)
    return fill(
        f"Added to another method with tuned learning rates, M changes the mean accuracy by "
        f"{', '.join(map(mean_added_text, PAIRS))} points. With default learning rates it helps "
        f"significantly in {helps} of {len(default)} cases. Training M first and then all weights "
        f"changes full fine-tuning by {signed_number(fmean(x.interval.mean for x in after))} "
        f"points, and hurts significantly in {hurts} of {len(after)} changes."
    )


def fill(text: str) -> str:
    """Lines as long as those of the pages."""
    kept = text.replace(" %", "\N{NO-BREAK SPACE}%")
    return textwrap.fill(kept, 125, break_long_words=False, break_on_hyphens=False)


def mean_added_text(way: str) -> str:
    """What M adds to a method over the changes, at tuned rates."""
    mean = fmean(cell.leads[0][way].interval.mean for cell in changed_cells())
    return f"{signed_number(mean)} ({PAIRS[way]})"


def clear_text(sign: int) -> str:
    """Changes in which M adds to methods, or costs, after adjustment over all cells."""
    parts = []
    for cell in changed_cells():
        leads = ((way, cell.leads[0][way]) for way in PAIRS)
        points = [
            f"{PAIRS[way]} {signed_number(lead.interval.mean)}"
            for way, lead in leads
            if lead.p_all < LEVEL and lead.interval.mean * sign > 0
        ]
        if points:
            change = CHANGES[cell.cell.changes[0]].replace("rotated by", "rotation by")
            parts.append(f"{change} ({', '.join(points)})")
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "none of the changes"


def streams_text() -> str:
    """Mean accuracy of ways without labels over streams in random order, and sorted by class."""
    cells = STREAM.read(RESULTS)

    def mean(way: str, order: str = "iid") -> float:
        return fmean(all_accuracies(c)[way] for c in cells if f"/{order}/" in c.cell.name)

    names = ("statistics", "statistics-running", "norm-running", "full-running")
    failed, kept, norm, m = (f"{mean(way, 'by-class'):.1f} %" for way in names)
    return fill(
        f"On streams in random order, the statistics of the batch alone reach "
        f"{mean('statistics'):.1f} %; batch normalisation by entropy {mean('norm'):.1f} %, M "
        f"{mean('full'):.1f} %, both {mean('full-norm'):.1f} %. Sorted by class, the statistics of "
        f"the batch fail ({failed}); running ones alone keep {kept}, with batch normalisation by "
        f"entropy {norm} and with M {m}."
    )


@cache
def restored_ratios() -> dict[tuple[str, int], dict[str, float]]:
    """Mean ratios in dB over the cameras, by data set and pairs of images, of 24 channels."""
    cells: dict[tuple[str, int], list[CellReport]] = {}
    for report in RESTORE.read(RESULTS):
        dataset, _, pairs = report.cell.file.rpartition(RESTORED)
        if dataset:
            cells.setdefault((dataset, int(pairs)), []).append(report)
    return {
        group: {
            way: fmean(report.correct[0][way].double().mean().item() for report in reports)
            for way in RESTORE.ways
            if way != "turned"
        }
        for group, reports in sorted(cells.items(), reverse=True)
        if len(reports) == len(CAMERAS)
    }


def restored_table() -> str:
    """Methods that adapt a deblurring network by their mean ratios."""
    ratios = restored_ratios()
    four = ratios[DEBLURRED, 4]
    heads = (f"{name}, {pairs} pair{'s' * (pairs > 1)}, dB" for name, pairs in ratios)
    rows = [
        (
            RESTORE.ways[way].label,
            f"{restored_parameters(way):,}",
            *(f"{means[way]:.2f}" for means in ratios.values()),
        )
        for way in sorted(RESTORE.ways.keys() - {"turned"}, key=lambda way: -four[way])
    ]
    return markdown_rows(("method", "parameters trained", *heads), *rows)


def restored_parameters(way: str) -> int:
    """How many parameters a method trains in a deblurring network."""
    return parameters_trained(RESTORE.read(RESULTS)[0], way)


def restored_text() -> str:
    """What M reaches in deblurring, compared with methods that train more."""
    one, four, small = (
        {way: f"{mean:.2f}" for way, mean in restored_ratios()[group].items()}
        for group in ((DEBLURRED, 1), (DEBLURRED, 4), ("cifar10", 1))
    )
    trained = {way: f"{restored_parameters(way):,}" for way in ("m", "adafm", "all")}
    return fill(
        f"A deblurring network adapts to another camera with four pairs of images. M reaches "
        f"{four['m']} dB ({trained['m']} parameters), AdaFM {four['adafm']} dB and LoRA "
        f"{four['lora']} dB ({trained['adafm']}), full fine-tuning {four['all']} dB "
        f"({trained['all']}); without adaptation it is {four['nothing']} dB, and the camera's own "
        f"image has {four['input']} dB. With one pair, M reaches {one['m']} dB and full "
        f"fine-tuning {one['all']} dB. On CIFAR-10 one pair is too few: M "
        f"has {small['m']} dB, full fine-tuning {small['all']} dB, the camera's image "
        f"{small['input']} dB."
    )


def turned_text() -> str:
    """Accuracies where images are corrected, and where a method trains."""
    turned = next(cell for cell in changed_cells() if cell.cell.changes[0] == TURNED)
    corrected = all_accuracies(turned)["undone"]
    trained = max(x for at in (False, True) for x in accuracies(turned, at).values())
    return f"{corrected:.1f} %, where training reaches {trained:.1f} %"


def frozen_text() -> str:
    """What trains with M: normalisation, too, where that is ahead at default learning rates."""
    means = mean_accuracies(True)
    norm = ', train="M+norm"' * (means["full-norm"] > means[OURS])
    return f'`ns.freeze_backbone(model, norm="train"{norm})`'


def differences_to_plain(budget: float, panel: int = 0) -> dict[str, Difference]:
    """Differences of error to the plain CNN, by image, of the rows of Table 4 that have run."""
    lines = make_report(TABLES["4"], budget=budget, results=RESULTS).panels[panel].lines
    changes = {line.row.label: line.baseline_difference for line in lines if line.records}
    return {label: change for label, change in changes.items() if change and change.by_image}


def networks_table() -> str:
    """Differences of the networks of Table 4 to the plain CNN."""
    paper = {row.label: row.paper for row in TABLES["4"].panels[0].rows}
    columns = [differences_to_plain(*place) for place in ((1,), (0.125,), (0.125, 1))]
    rows = []
    for label, name in NETWORKS.items():
        texts = (difference_text(found.get(label)) for found in columns)
        rows.append((name, signed_number(paper[label] - paper["CNN"]), *texts))
    return markdown_rows(HEADS["networks"], *rows)


def difference_text(change: Difference | None) -> str:
    """A difference by image with its seeds."""
    if change is None:
        return "not run"
    seeds = len(change.common)
    text = f"{signed_number(change.by_image.mean)} ({seeds} seed{'s' * (seeds > 1)})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def ended_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Network, epochs, error, difference to the plain network, and time of a step over its."""
    errors = read_errors(RESULTS)
    judged = {(each.ours, each.theirs): each for each in judge_all(errors)}
    for epochs in EPOCHS:
        plain = ArmKey("cnn", epochs)
        if len(errors.get(plain, ())) > 1:
            yield "plain CNN-9", str(epochs), error_text(errors[plain]), "", "1"
        for name, (label, *report, group) in ENDED.items():
            key = ArmKey(name, epochs)
            if (found := judged.get((key, plain))) and found.interval:
                ratio = range_text(time_ratios(*report, **group))
                difference = interval_text(found.interval)
                yield label, str(epochs), error_text(errors[key]), difference, ratio


def ended_table() -> str:
    """Networks that were trained to the end, with several seeds each."""
    return markdown_rows(HEADS["ended"], *ended_rows())


def time_ratios(file: str, name: str, kind: str, **group: Any) -> list[float]:
    """Times of a benchmark over the plain ones, sorted; `what` is the beginning of its group's."""
    rows = json.loads((ROOT / "benchmarks" / file).read_text("utf-8"))["rows"]
    what = group.pop("what", "")
    return sorted(
        row["times"][kind]["ratio"]
        for row in rows
        if row["name"] == name
        and str(row["group"].get("what", "")).startswith(what)
        and all(row["group"].get(key) == value for key, value in group.items())
    )


def range_text(values: list[float]) -> str:
    """The least and the greatest of some ratios."""
    low, high = f"{values[0]:.2f}", f"{values[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def costs_table() -> str:
    """Times over a plain network's, on one CPU thread."""
    files = ("inference.json", "epyc/inference.json")
    folded = [value for f in files for value in time_ratios(f, "static-full, folded", "forward")]
    rows = [("static M, folded", "inference, CNN-9", range_text(sorted(folded)))]
    for name, case, file, row, kind, group in WORDS["costs"]:
        rows.append((name, case, range_text(time_ratios(file, row, kind, **group))))
    return markdown_rows(HEADS["costs"], *rows)


def claim_rows() -> list[list[str]]:
    """The cells of every claim of evidence/claims.md."""
    text = (ROOT / "docs/evidence/claims.md").read_text("utf-8")
    return [
        line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d+ ", line)
    ]


def verdict_counts() -> list[tuple[str, int]]:
    """Verdicts with the number of their claims, most frequent first."""
    return Counter(row[3].strip("*") for row in claim_rows()).most_common()


def claims_table() -> str:
    """The claims of `ASKED` with their verdicts."""
    found = {
        start: (row[1], row[3])
        for row in claim_rows()
        for start in ASKED
        if row[2].startswith(start)
    }
    rows = [(words, *found[start]) for start, words in ASKED.items()]
    return markdown_rows(HEADS["claims"], *rows)


TABLES_SHOWN: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "map": map_text,
    "added": added_text,
    "streams": streams_text,
    "restored": restored_table,
    "deblurring": restored_text,
    "turned": turned_text,
    "frozen": frozen_text,
    "networks": networks_table,
    "ended": ended_table,
    "costs": costs_table,
    "claims": claims_table,
}
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\s)(.*?)(<!-- end -->)", re.DOTALL)


def filled_page(text: str) -> str:
    """A page with its tables as the records have them; a block in a paragraph goes on in it."""

    def fill(m: re.Match[str]) -> str:
        content = TABLES_SHOWN[m[2]]().strip()
        inside = text[m.start() - 1] != "\n"
        return f"{m[1]}{content}{m[4]}" if inside else f"{m[1]}\n{content}\n\n{m[4]}"

    return BLOCK.sub(fill, text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text("utf-8")
        if (now := filled_page(before)) != before:
            page.write_text(now, "utf-8")
