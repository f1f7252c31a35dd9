"""Table 6, few-shot recognition on Mini-ImageNet, or on other data, beside our evaluations."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

import torch

from neural_similarity.lab.paper.markdown import signed
from neural_similarity.lab.paper.records import Record, budgets, read_records
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation
from neural_similarity.lab.tasks.few_shot.recipe import Classes, FewShotRecipe
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes
from neural_similarity.lab.train.statistics import Interval, by_task

MINI = "mini"
TITLES = {
    MINI: "Table 6: few-shot recognition on Mini-ImageNet, 5 ways",
    "cifar-fs": "The rows of table 6 on CIFAR-FS, 5 ways",
    "fc100": "The rows of table 6 on FC100, 5 ways",
}
"""Titles by the data set, with which the names of their recipes begin."""
WAYS, QUERIES = 5, 15
SHOTS = (5, 1)
"""The paper's numbers of shots, and one."""


@dataclass(frozen=True)
class FewShotRow:
    """A row of Table 6, or a control that it lacks."""

    label: str
    recipe: str
    """Name of the recipe that trains it."""
    method: str
    """The method that is evaluated on its network."""
    paper: float | None = None
    """The paper's accuracy in percent, 5 ways and 5 shots."""
    reach: float | None = None
    """Half the paper's interval, what ± stands before."""
    data: str = MINI
    """The data set, with which the name of its recipe begins."""

    def on(self, data: str) -> "FewShotRow":
        """The row on other data, for which the paper has no number."""
        if data == self.data:
            return self
        recipe = data + self.recipe.removeprefix(self.data)
        return replace(self, recipe=recipe, data=data, paper=None, reach=None)

    def recipe_for(self, shots: int) -> str:
        """The recipe for this number of shots, where there is a special one."""
        own = f"{self.recipe}-{shots}shot"
        return own if own in RECIPES else self.recipe


PANELS: dict[str, tuple[FewShotRow, ...]] = {
    "CNN-4": (
        FewShotRow("fine-tuning", "mini-cnn4", "fine-tuning", 49.79, 0.79),
        FewShotRow("nearest neighbour", "mini-cnn4", "nearest-neighbour", 51.04, 0.65),
        FewShotRow("MatchingNet", "mini-matching-fce", "matching-fce", 55.31, 0.73),
        FewShotRow("ProtoNet", "mini-proto", "proto", 68.20, 0.66),
        FewShotRow("MAML", "mini-maml", "maml", 63.15, 0.91),
        FewShotRow("RelationNet", "mini-relation", "relation", 65.32, 0.70),
        FewShotRow("static NSN", "mini-cnn4", "static-nsn", 65.74, 0.68),
        FewShotRow("meta-learned static NSN", "mini-meta-static", "meta-nsn", 66.21, 0.69),
        FewShotRow("dynamic NSN", "mini-dynamic", "fine-tuning", 71.26, 0.65),
    ),
    "deeper": (
        FewShotRow("discriminative k-shot (ResNet-34)", "mini-resnet34", "k-shot", 73.90, 0.30),
        FewShotRow("TADAM (ResNet-12)", "mini-tadam", "tadam", 76.7, 0.3),
        FewShotRow("LEO (WRN-28-10)", "mini-leo", "leo", 77.59, 0.12),
        FewShotRow("dynamic NSN (CNN-9)", "mini-dynamic-cnn9", "fine-tuning", 77.44, 0.63),
    ),
    "similarity within other methods (author response, table 1)": (
        FewShotRow("static NSN in MAML", "mini-maml-static", "maml", 66.91, 0.66),
        FewShotRow("dynamic NSN in MAML", "mini-maml-dynamic", "maml", 67.82, 0.71),
        FewShotRow("static NSN in ProtoNet", "mini-proto-static", "proto", 70.30, 0.44),
        FewShotRow("dynamic NSN in ProtoNet", "mini-proto-dynamic", "proto", 71.39, 0.67),
        FewShotRow("static NSN in RelationNet", "mini-relation-static", "relation", 67.87, 0.42),
        FewShotRow("dynamic NSN in RelationNet", "mini-relation-dynamic", "relation", 68.90, 0.65),
        FewShotRow("MAML (CNN-9)", "mini-maml-cnn9", "maml", 67.64, 0.85),
        FewShotRow("static NSN in MAML (CNN-9)", "mini-maml-static-cnn9", "maml", 73.63, 0.35),
        FewShotRow("dynamic NSN in MAML (CNN-9)", "mini-maml-dynamic-cnn9", "maml", 78.98, 0.60),
        FewShotRow(
            "static NSN in ProtoNet (CNN-9)", "mini-proto-static-cnn9", "proto", 75.12, 0.37
        ),
        FewShotRow(
            "dynamic NSN in ProtoNet (CNN-9)", "mini-proto-dynamic-cnn9", "proto", 78.72, 0.79
        ),
        FewShotRow(
            "static NSN in RelationNet (CNN-9)",
            "mini-relation-static-cnn9",
            "relation",
            71.79,
            0.52,
        ),
        FewShotRow(
            "dynamic NSN in RelationNet (CNN-9)",
            "mini-relation-dynamic-cnn9",
            "relation",
            72.23,
            0.49,
        ),
        FewShotRow(
            "meta-learned static NSN (CNN-9)", "mini-meta-static-cnn9", "meta-nsn", 78.05, 0.57
        ),
    ),
    "controls": (
        FewShotRow("fine-tuning, 64 filters", "mini-cnn4-64", "fine-tuning"),
        FewShotRow("static NSN, 64 filters", "mini-cnn4-64", "static-nsn"),
        FewShotRow("fine-tuning (CNN-9)", "mini-cnn9", "fine-tuning"),
        FewShotRow("Baseline++", "mini-cnn4-cosine", "baseline++"),
        FewShotRow("ProtoNet, 64 filters", "mini-proto-64", "proto"),
        FewShotRow("ProtoNet, from fine-tuning", "mini-proto-pretrained", "proto"),
        FewShotRow("MatchingNet, no context", "mini-matching", "matching"),
        FewShotRow("MAML, first order", "mini-maml-first-order", "maml-first-order"),
        FewShotRow("ANIL", "mini-anil", "anil"),
        FewShotRow("meta-learned dynamic NSN", "mini-meta-dynamic", "meta-nsn"),
    ),
}
BASELINE, CONTROL = PANELS["CNN-4"][0], PANELS["controls"][0]
COMPARED = {"to fine-tuning": BASELINE, "to 64 filters": CONTROL}
"""The rows that every row is compared with, by heading; the control is as large as dynamic NSN."""
HEAD = (
    "method",
    "recipe",
    "shots",
    "paper",
    "ours",
    *COMPARED,
    "parameters",
    "trained on",
    "budget",
    "step",
    "precision",
    "batch norm",
    "tasks",
    "seeds",
)


@dataclass(frozen=True, kw_only=True)
class FewShotLine:
    """A row with evaluations that differ in their seed alone."""

    row: FewShotRow
    evaluations: tuple[Record, ...]
    differences: tuple[str, ...]
    """To the rows of `COMPARED` on the same tasks, seeds and classes, in points."""

    @property
    def accuracy(self) -> Interval:
        """Over the tasks, each averaged over the seeds; in percent."""
        return by_task(100 * _mean(self.evaluations))

    @property
    def seeds(self) -> str:
        """How many there are, the deviation between them from two on, and those of changed code."""
        values = [100 * one.summary["accuracy"] for one in self.evaluations]
        text = f"{len(values)}" if len(values) < 2 else f"{len(values)} (σ {stdev(values):.2f})"
        changed = ", ".join(str(one.seed) for one in self.evaluations if one.code["dirty"])
        return text + (f"; local changes: {changed}" if changed else "")


def _of(record: Record) -> Evaluation:
    """What was evaluated; every few-shot record has it."""
    return cast(Evaluation, record.evaluation)


def _classes(record: Record) -> Classes:
    return cast(FewShotRecipe, record.recipe).train_on


def sizes(shots: int) -> TaskSizes:
    """The sizes of Table 6's tasks."""
    return TaskSizes(ways=WAYS, shots=shots, queries=QUERIES)


def rows_on(data: str) -> list[FewShotRow]:
    """All rows, on one of the data sets of `TITLES`."""
    return [row.on(data) for row in chain(*PANELS.values())]


def few_shot_markdown(results: Path, budget: float | None = None, data: str = MINI) -> str:
    """Table 6 as Markdown, all numbers of ours from the records in `results`.

    Args:
        results: Folder of the records.
        budget: Of the runs; None is the one at which most rows have some, and for a row that has
            none there the largest that it has.
        data: One of `TITLES`.
    """
    usual, at = _chosen(results, budget, data)
    parts = [f"# {TITLES[data]}" + ("" if usual == 1 else f" (reduced schedule, budget {usual:g})")]
    differences = 0
    for title, rows in PANELS.items():
        parts.append(f"## {title}")
        lines = [HEAD, ("---",) * len(HEAD)]
        for row in (row.on(data) for row in rows):
            for shots in SHOTS:
                lines += _cells(row, shots, results, at[row, shots])
        places = [HEAD.index(name) for name in COMPARED]
        differences += sum(bool(cells[place]) for cells in lines[2:] for place in places)
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    count = f"{differences} differences with intervals, none adjusted for their number."
    return "\n\n".join([*parts, f"{_NOTE} {count}"]) + "\n"


def few_shot_rows(
    results: Path, budget: float | None = None, data: str = MINI
) -> list[dict[str, Any]]:
    """Table 6 as JSON values, one row per group of evaluations."""
    _, at = _chosen(results, budget, data)
    return [
        {
            **{"label": row.label, "recipe": row.recipe_for(shots), "method": row.method},
            **{"shots": shots, "paper": row.paper, "budget": budget, "trained_on": _classes(one)},
            **{"accuracy": line.accuracy.mean, "reach": line.accuracy.reach},
            "seeds": [record.seed for record in line.evaluations],
            "batch_norm": _of(one).statistics,
            "tasks": _of(one).tasks["count"],
        }
        for (row, shots), budget in at.items()
        for line in _lines(row, shots, results, budget)
        for one in line.evaluations[:1]
    ]


def _chosen(
    results: Path, budget: float | None, data: str
) -> tuple[float, dict[tuple[FewShotRow, int], float]]:
    """The budget of most rows, and that of each row and number of shots."""
    places = [(row, shots) for row in rows_on(data) for shots in SHOTS]
    if budget is not None:
        return budget, dict.fromkeys(places, budget)
    found = {place: _budgets(*place, results) for place in places}
    counts = Counter(chain(*found.values()))
    usual = max(counts, key=lambda b: (counts[b], b), default=1.0)
    best = {p: usual if usual in own else max(own, default=usual) for p, own in found.items()}
    return usual, best


_NOTE = (
    "Accuracy in percent, mean over tasks of the accuracy of each, ± 1.96 standard errors over the "
    "tasks; σ is the deviation between seeds, and local changes are the seeds whose code differed "
    "from its commit. Differences are paired: the same budget, seeds, "
    "training classes and tasks, where of two lists of one seed the shorter is the beginning of "
    "the longer. Batch norm says whose statistics normalise queries; only `transductive` "
    "lets queries see each other. Parameters are those that training leaves: not the classifier "
    "that a task learns from nothing, but its learned start in MAML, ANIL and meta-learned NSN, "
    "and the base classes' in discriminative k-shot. The step is the one evaluated: the best on "
    "the validation classes, or, on train+val, the last. A row without runs at the title's budget "
    "has those of another, and the column says which; it names the start where the run that "
    "training started from was of another. The paper trains static and dynamic NSN on "
    "train+val, MAML and meta-learned static NSN on train. In the table of the authors' response "
    "the methods' names are lost; they stand here in the order that fits the rows of Table 6."
)


def _budgets(row: FewShotRow, shots: int, results: Path) -> list[float]:
    """The budgets at which the row has evaluations."""
    known = map(float, budgets(results, [row.recipe_for(shots)]))
    return [budget for budget in known if _groups(row, shots, results, budget)]


def _cells(row: FewShotRow, shots: int, results: Path, budget: float) -> list[tuple[str, ...]]:
    name = row.recipe_for(shots)
    paper = "" if shots != SHOTS[0] or row.paper is None else f"{row.paper:.2f}"
    if paper and row.reach is not None:
        paper += f" ± {row.reach:.2f}"
    front = (row.label, f"`{name}`", str(shots), paper)
    lines = _lines(row, shots, results, budget)
    if not lines:
        cells = (*front, "not run")
        return [(*cells, *("",) * (len(HEAD) - len(cells)))]
    return [(*front, *_ours(line)) for line in lines]


def _ours(line: FewShotLine) -> tuple[str, ...]:
    first, accuracy = line.evaluations[0], line.accuracy
    return (
        f"{accuracy.mean:.2f} ± {accuracy.reach:.2f}",
        *line.differences,
        f"{first.summary['parameters'] / 1e3:,.1f} k",
        _classes(first),
        _budget(first),
        f"{fmean(_of(one).checkpoint['step'] for one in line.evaluations):,.0f}",
        " and ".join(sorted({one.environment["precision"] for one in line.evaluations})),
        _of(first).statistics,
        f"{_of(first).tasks['count']:,}",
        line.seeds,
    )


def _budget(one: Record) -> str:
    """The budget of the run, and that of the run it started from where they differ."""
    start = _start_budget(one)
    return f"{one.budget:g}" + (f" (start: {start:g})" if start != one.budget else "")


def _start_budget(one: Record) -> float:
    return (one.start or {}).get("budget", one.budget)


def _lines(row: FewShotRow, shots: int, results: Path, budget: float) -> list[FewShotLine]:
    """The evaluations of a row, grouped where they differ only in the seed."""
    compared = [other.on(row.data) for other in COMPARED.values()]
    others = [_groups(other, shots, results, budget) for other in compared]
    lines = []
    for found in _groups(row, shots, results, budget).values():
        differences = tuple(
            "" if row == other else _difference(found, _comparable(found[0], theirs))
            for other, theirs in zip(compared, others, strict=True)
        )
        lines.append(FewShotLine(row=row, evaluations=tuple(found), differences=differences))
    return lines


def _comparable(ours: Record, groups: dict[Hashable, list[Record]]) -> list[Record]:
    """Those of the same classes and tasks: of one seed and data, the first are the same."""
    facts = ("part", "seed")
    return [
        one
        for group in groups.values()
        for one in group
        if _of(one).statistics == "running"
        and _classes(one) == _classes(ours)
        and one.data["digest"] == ours.data["digest"]
        and all(_of(one).tasks[fact] == _of(ours).tasks[fact] for fact in facts)
        and (_of(one).tasks["digest"] == _of(ours).tasks["digest"])
        == (len(one.correct) == len(ours.correct))
    ]


def _groups(
    row: FewShotRow, shots: int, results: Path, budget: float
) -> dict[Hashable, list[Record]]:
    """Evaluations on test classes by classes of training, statistics, tasks and start."""
    groups: dict[Hashable, list[Record]] = {}
    for one in _longest(read_records(results, row.recipe_for(shots), budget)):
        of = _of(one)
        if (of.method, of.sizes, of.tasks["part"]) == (row.method, sizes(shots), "test"):
            tasks = of.tasks["digest"]
            key = (_classes(one), _of(one).statistics, tasks, _start_budget(one))
            groups.setdefault(key, []).append(one)
    return groups


def _longest(evaluations: Iterable[Record]) -> list[Record]:
    """Of those that differ only in the number of tasks, the one with the most."""
    longest: dict[str, Record] = {}
    for one in sorted(evaluations, key=lambda one: _of(one).tasks["count"]):
        of = replace(_of(one), tasks=_of(one).tasks | {"count": 0})
        longest[of.name(_classes(one), one.seed)] = one
    return list(longest.values())


def _difference(ours: Sequence[Record], theirs: Sequence[Record]) -> str:
    """The difference over the common seeds, and their number if some lack; "" without any."""
    seeds = {one.seed for one in ours} & {one.seed for one in theirs}
    if not seeds:
        return ""
    pair = [[one for one in side if one.seed in seeds] for side in (ours, theirs)]
    count = min(len(one.correct) for side in pair for one in side)
    ours_mean, theirs_mean = (100 * _mean(side)[:count] for side in pair)
    difference = by_task(ours_mean - theirs_mean)
    text = f"{signed(difference.mean)} ± {difference.reach:.2f}"
    return text if len(seeds) == len(ours) else f"{text} (n = {len(seeds)})"


def _mean(evaluations: Sequence[Record]) -> torch.Tensor:
    """Accuracy of each task that all have, averaged over the evaluations."""
    count = min(len(one.correct) for one in evaluations)
    return torch.stack([_of(one).accuracies[:count] for one in evaluations]).mean(0)
