"""Table 6, few-shot recognition on Mini-ImageNet, and the controls that it lacks, as data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neural_similarity.lab.recipes import RECIPES
from neural_similarity_paper.tables.rows import Panel, Row, Table

SHOTS = (5, 1)
"""The paper's numbers of shots, and one."""


class _Entry(NamedTuple):
    """A row at every number of shots; the paper's accuracy and half width are of 5 shots."""

    label: str
    recipe: str
    """Its name without "mini-"."""
    method: str
    paper: float | None = None
    half_width: float | None = None


PANELS: dict[str, tuple[_Entry, ...]] = {
    "CNN-4": (
        _Entry("fine-tuning", "cnn4", "fine-tuning", 49.79, 0.79),
        _Entry("nearest neighbour", "cnn4", "nearest-neighbour", 51.04, 0.65),
        _Entry("MatchingNet", "matching-fce", "matching-fce", 55.31, 0.73),
        _Entry("ProtoNet", "proto", "proto", 68.20, 0.66),
        _Entry("MAML", "maml", "maml", 63.15, 0.91),
        _Entry("RelationNet", "relation", "relation", 65.32, 0.70),
        _Entry("static NSN", "cnn4", "static-nsn", 65.74, 0.68),
        _Entry("meta-learned static NSN", "meta-static", "meta-nsn", 66.21, 0.69),
        _Entry("dynamic NSN", "dynamic", "fine-tuning", 71.26, 0.65),
    ),
    "deeper": (
        _Entry("discriminative k-shot (ResNet-34)", "resnet34", "k-shot", 73.90, 0.30),
        _Entry("TADAM (ResNet-12)", "tadam", "tadam", 76.7, 0.3),
        _Entry("LEO (WRN-28-10)", "leo", "leo", 77.59, 0.12),
        _Entry("dynamic NSN (CNN-9)", "dynamic-cnn9", "fine-tuning", 77.44, 0.63),
    ),
    "similarity within other methods (author response, table 1)": (
        _Entry("static NSN in MAML", "maml-static", "maml", 66.91, 0.66),
        _Entry("dynamic NSN in MAML", "maml-dynamic", "maml", 67.82, 0.71),
        _Entry("static NSN in ProtoNet", "proto-static", "proto", 70.30, 0.44),
        _Entry("dynamic NSN in ProtoNet", "proto-dynamic", "proto", 71.39, 0.67),
        _Entry("static NSN in RelationNet", "relation-static", "relation", 67.87, 0.42),
        _Entry("dynamic NSN in RelationNet", "relation-dynamic", "relation", 68.90, 0.65),
        _Entry("MAML (CNN-9)", "maml-cnn9", "maml", 67.64, 0.85),
        _Entry("static NSN in MAML (CNN-9)", "maml-static-cnn9", "maml", 73.63, 0.35),
        _Entry("dynamic NSN in MAML (CNN-9)", "maml-dynamic-cnn9", "maml", 78.98, 0.60),
        _Entry("static NSN in ProtoNet (CNN-9)", "proto-static-cnn9", "proto", 75.12, 0.37),
        _Entry("dynamic NSN in ProtoNet (CNN-9)", "proto-dynamic-cnn9", "proto", 78.72, 0.79),
        _Entry(
            "static NSN in RelationNet (CNN-9)", "relation-static-cnn9", "relation", 71.79, 0.52
        ),
        _Entry(
            "dynamic NSN in RelationNet (CNN-9)", "relation-dynamic-cnn9", "relation", 72.23, 0.49
        ),
        _Entry("meta-learned static NSN (CNN-9)", "meta-static-cnn9", "meta-nsn", 78.05, 0.57),
    ),
    "controls": (
        _Entry("fine-tuning, 64 filters", "cnn4-64", "fine-tuning"),
        _Entry("static NSN, 64 filters", "cnn4-64", "static-nsn"),
        _Entry("fine-tuning (CNN-9)", "cnn9", "fine-tuning"),
        _Entry("Baseline++", "cnn4-cosine", "baseline++"),
        _Entry("ProtoNet, 64 filters", "proto-64", "proto"),
        _Entry("ProtoNet, from fine-tuning", "proto-pretrained", "proto"),
        _Entry("MatchingNet, no context", "matching", "matching"),
        _Entry("MAML, first order", "maml-first-order", "maml-first-order"),
        _Entry("ANIL", "anil", "anil"),
        _Entry("meta-learned dynamic NSN", "meta-dynamic", "meta-nsn"),
    ),
}
COMPARED = {"to fine-tuning": "fine-tuning", "to 64 filters": "fine-tuning, 64 filters"}
"""The control is as large as dynamic NSN."""
NOTE = (
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


def few_shot_table(shots: Sequence[int] = SHOTS) -> Table:
    """Table 6 at these numbers of shots, the paper's first."""
    panels = (
        Panel(
            title,
            "accuracy",
            tuple(row for entry in entries for row in _rows_by_shots(entry, shots)),
        )
        for title, entries in PANELS.items()
    )
    title = "Table 6: few-shot recognition on Mini-ImageNet, 5 ways"
    return Table(title, tuple(panels), compared=COMPARED, mixed=True, note=NOTE)


def _rows_by_shots(entry: _Entry, shots: Sequence[int]) -> Iterator[Row]:
    """A row for each number of shots, of the recipe for it where there is a special one."""
    for count in shots:
        special = f"mini-{entry.recipe}-{count}shot"
        recipe = special if special in RECIPES else f"mini-{entry.recipe}"
        row = Row(entry.label, recipe, method=entry.method, shots=count)
        if count == shots[0]:
            row = replace(row, paper=entry.paper, half_width=entry.half_width)
        yield row
