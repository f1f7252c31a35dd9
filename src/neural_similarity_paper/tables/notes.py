"""How to read a panel of a table, and what its runs ran on."""

from neural_similarity.lab.recipes import RECIPES
from neural_similarity.nn import SphereNet
from neural_similarity_paper.tables.kinds import Record
from neural_similarity_paper.tables.markdown import interval_text
from neural_similarity_paper.tables.records import commits_of
from neural_similarity_paper.tables.report import PanelReport

BETTER = {"error": "lower is better", "accuracy": "higher is better"}


def panel_notes(report: PanelReport) -> str:
    """How to read the panel, and what its runs ran on."""
    if not report.all_records:
        return ""
    images = len(report.all_records[0].correct)
    machines = sorted({_machine_text(record) for record in report.all_records})
    commits = sorted({_code_commits(record) for record in report.all_records})
    return (
        f"{BETTER[report.panel.metric].capitalize()}. ± is the sample standard deviation over n "
        "seeds. Differences are in points to the baseline re-run with the same seeds and budget, "
        "with 95 % intervals: by seed, Student's t over the common seeds' differences, from three "
        f"seeds on; by image, over the {images:,} test images, each averaged over the common "
        "seeds, which says nothing about other seeds; by both, of a mixed model in which seeds and "
        "images are drawn at random. MACs are of one image, static similarities "
        "folded. Time is the training time of a run, with others beside it: no benchmark.\n\n"
        f"Run on {'; '.join(machines)}; code {', '.join(commits)}."
        f"{_other_precisions(report)}{_changed_code_note(report)}"
        f"{_scatter_note(report)}{_choice_warning(report)}"
    )


def _changed_code_note(report: PanelReport) -> str:
    """The runs of code that differed from its commit."""
    runs = [f"`{each.name}` seed {each.seed}" for each in report.all_records if each.code["dirty"]]
    return f" Code with local changes: {', '.join(runs)}." if runs else ""


def _scatter_note(report: PanelReport) -> str:
    """The scatter of seeds over all rows, and how far to trust the intervals."""
    differences = [each for line in report.lines for each in line.differences]
    if not (intervals := sum(len(each.intervals) for each in differences)):
        return ""
    count = f"{intervals} intervals."
    if report.scatter is None:
        return f"\n\n{count}"
    deviation, freedom = report.scatter
    lines = [(each.row.label, each.baseline_difference.by_pooled_seeds) for each in report.lines]
    listed = "; ".join(f"{label} {interval_text(pooled)}" for label, pooled in lines if pooled)
    return (
        f"\n\nPooled over the rows, seeds of a recipe scatter by σ = {deviation:.3f} points "
        f"({freedom} degrees of freedom). Differences between the means over all seeds of each, "
        f"with intervals by that scatter: {listed}. {count}"
    )


def _choice_warning(report: PanelReport) -> str:
    """A warning where rows use a choice that was made by the test error they report."""
    rows = [each.row for each in report.lines if each.records]
    if not any(
        getattr(RECIPES[row.recipe].similarity, "predictor", 0) == SphereNet(batch_norm=True)
        for row in rows
    ):
        return ""
    return (
        " The predictor of the dynamic rows (root mean square, batch normalisation) was chosen by "
        "test error on CIFAR-10, and other rows were not tuned so."
    )


def _other_precisions(report: PanelReport) -> str:
    """The runs that were trained or scored in another precision than most of the panel."""
    groups: dict[str, list[str]] = {}
    for record in report.all_records:
        run = f"`{record.name}` seed {record.seed}"
        groups.setdefault(record.precision, []).append(run)
    usual = max(groups, key=lambda precision: len(groups[precision]))
    return "".join(
        f" In {precision} and not {usual}: {', '.join(runs)}."
        for precision, runs in groups.items()
        if precision != usual
    )


def _machine_text(record: Record) -> str:
    environment = record.environment
    device = environment["device"]
    place = environment["cpu"] if device == "cpu" else device
    threads = environment["threads"]
    where = f"{place}, {threads} thread{'s' if threads > 1 else ''}"
    return f"{where}, {record.precision}, torch {environment['torch']}"


def _code_commits(record: Record) -> str:
    """The commits of a run from its environment; older records name only the first."""
    code, commit = record.code, record.code.get("commit") or ""
    began = commit[:12] or f"version {code['version']}"
    others = [c[:12] for c in commits_of(record.environment) if c != commit]
    text = " then ".join((began, *others))
    return f"{text} with local changes" if code["dirty"] else text
