"""Learning rate and decay of the arms of `recipes.end`, chosen on held-out training images.

Each of three peaks at the usual decay, then two more decays at the best peak: 16 epochs, seed 0,
5,000 of the training images held out. No test image is scored for a choice.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.journal import read_lines
from neural_similarity.lab.train.run import read_facts
from neural_similarity.lab.train.stopping import signals_noted
from neural_similarity_paper.recipes.end import DECAY, EPOCHS
from neural_similarity_paper.studies.sheets import SCORED, ReportLine, filling_alone, open_sheet
from neural_similarity_paper.tables.running import start_process, wait_for

END_SEARCH = "end-search"
"""Folder of the sheets below that of all results."""
PEAKS, DECAYS = (0.1, 0.2, 0.4), (2.5e-4, 1e-3)
HELD_OUT, SEED, SEARCH_EPOCHS = 5_000, 0, 16


class Settings(NamedTuple):
    """What a run trains with."""

    peak: float
    decay: float

    def __str__(self) -> str:
        return f"{self.peak:g} {self.decay:g}"


def choose_settings(score: Callable[[Settings], float]) -> Settings:
    """The settings with the highest accuracy on held-out images, the first of equal ones."""

    def best(tried: Sequence[Settings]) -> Settings:
        scores = [score(settings) for settings in tried]
        return tried[scores.index(max(scores))]

    first = best([Settings(peak, DECAY) for peak in PEAKS])
    return best([first, *(first._replace(decay=decay) for decay in DECAYS)])


def run_search(arm: str, data: Path, results: Path, report: ReportLine) -> None:
    """Run what the search of an arm lacks; every run is kept, and one that is stopped goes on."""
    with filling_alone(results / END_SEARCH):
        terms = {"epochs": SEARCH_EPOCHS, "held_out": HELD_OUT, "seed": SEED}
        sheet = open_sheet(results / END_SEARCH / f"{arm}.json", SCORED, arm=arm, **terms)
        choose_settings(lambda s: sheet.run(s, lambda _: train_arm(arm, s, data), report))


def train_arm(arm: str, settings: Settings, data: Path) -> dict[str, Any]:
    """Train an arm in a process of its own, from where it was stopped; its scores.

    Raises:
        RunError: it ended with an error.
    """
    folder = Path("runs") / END_SEARCH / f"{arm}-{str(settings).replace(' ', '-')}"
    words = ["train", "--resume", f"{folder}"]
    if not folder.exists():
        words = ["train", f"cifar10-end-{arm}", "--budget", f"{EPOCHS[SEARCH_EPOCHS]}"]
        words += ["--lr", f"{settings.peak}", "--weight-decay", f"{settings.decay}"]
        words += ["--validation", f"{HELD_OUT}", "--seed", f"{SEED}", "--out", f"{folder}"]
        words += ["--threads", "1"]
    if not (folder / "summary.json").exists():
        with signals_noted() as stop:
            code = wait_for(start_process([*words, "--data", f"{data}"], None), stop)
        if code:
            raise RunError(f"nsim train ended with {code}; the same command goes on with {folder}")
    last, summary = read_lines(folder / "metrics.jsonl")[-1], read_facts(folder / "summary.json")
    scores = {"accuracy": last["validation_accuracy"], "loss": last["validation_loss"]}
    return scores | {"score_precision": summary["score_precision"]}
