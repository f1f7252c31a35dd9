"""docs/performance.md, written from what `python -m benchmarks` saved."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.current import current
from benchmarks.markdown import comparison, table
from benchmarks.report import Report, Row, grouped, read, split, title
from benchmarks.targets import TARGETS

INTRODUCTION = """\
# Performance

`{command}` writes this page from what the
benchmarks saved in `{folder}/`, where there are all times with their intervals; each section names
the command that measured it.

Everything is checked before it is timed: operators at the operands that they are timed with,
outputs and all gradients, against the definition in float64. Of networks (on sixteen images), our
layer and ODConv2d, whose gradients rounding can change at will, outputs in evaluation mode are
checked in the dtype that is timed, and gradients in float64, where plain operations take the place
of what is C in other dtypes; those gradients are the test suite's to check. What is wrong has no
time. An error is the norm of the difference over the norm of what is expected.

Everything is timed by turns. A ratio is the median over the rounds of the ratio to the baseline
in the same round; in brackets is a 95 % interval of that median (of fewer than six rounds, which
do not suffice for one, their range). Where the baseline's times were wider apart than 10 %, all
were timed again, three times at most, and the attempt with the calmest baseline counts. Maps are
channels last, which unfold and `deform_conv2d` copy into a layout of their own in every call.
Saved bytes are all that autograd keeps but parameters, the input included. Peak memory is what a
call adds to the process at most. MMACs count every multiplication of the forward pass for one
image."""
HEADINGS = {
    "operators": "Operators",
    "scaling": "Batch size, resolution, threads",
    "training": "Training",
    "recipes": "Networks of the tables",
    "inference": "Inference",
    "fewshot": "Few-shot learning",
}
"""The sections in their order."""
NOTES = {
    "operators": """\
3×3 convolutions of C to C channels. `ours, compiled` and the like are the dynamic operator by
backend, given M; the TensorFlow form, unfold + matmul and `deform_conv2d` compute the same of the
same M. A static M is folded into the kernel in every call. The layer adds its predictor.
CondConv2d and ODConv2d are other functions, one kernel an image; CondConv2d is given its routing
weights. Cells are ratios to `nn.Conv2d` of the same dtype and layout, forward, then forward and
backward.

`eager` is for where there is no C compiler. It misses its limits beside `compiled`, after six
designs: for the kernel's gradient torch's operations pass over columns of nine times the map in
blocks of 2 MiB, the second-level cache; C makes and multiplies those of 64 positions at a time.
Before code 80601f4 the forward pass did so too; now the kernel goes first there.

A matrix unit (AMX) makes the plain convolution in bf16 several times faster, and the operations
that `eager` is made of hardly. `compiled` uses it as well, and is bound by what the vector unit
does to patches: gather, multiply by M, round. [performance.md](performance.md) is of a processor
that has one, [performance-epyc.md](performance-epyc.md) of one without.""",
    "scaling": """\
Our operators with the backend that `auto` takes. Flat lines are linear growth. The process keeps
what it frees, as it does in `nsim train`: else glibc fetches blocks beyond 32 MiB anew in every
call.""",
    "training": """\
A step is forward, loss, backward and SGD on one batch of CNN-9, with a log for the loops.
`dynamic-dns-half-width` and the like are dynamic diagonal M by cheaper predictors, which `nsim
recipes` describes. The bare loop has its batches ready and does nothing else; `nsim train` cuts,
mirrors and counts images and writes its log ten times as often as by default. Its checkpoints, one
every two minutes, are not in it.""",
    "recipes": """\
Steps as above, of the networks of the recipes that `nsim recipes` describes; the process keeps
what it frees, as it does in `nsim train`. `nsim table` shows these ratios beside what the networks
reach, and draws one against the other.""",
    "inference": "CNN-9 in evaluation mode, without autograd.",
    "fewshot": """\
Tasks of 5 ways, 5 shots and 15 queries a class. MAML: one task's gradient through five steps on
all parameters, images of 84 pixels unless the command says another size, batch normalisation by
each batch's statistics; checked in float64, where ours takes plain operations in place of what is
C in fp32. That is so since code 4aceb43, in channels-last memory; `higher` has torch's own, where
it is faster.
ProtoNet: the evaluator on features that are there already, beside its definition for one task
after another; the error is by how many right queries the tasks differ from float64, over all
queries.""",
}


def page(results: Path, path: Path, command: str) -> str:
    """The page for the reports in a folder.

    Args:
        results: Where the benchmarks saved them; what is missing there is told as not measured.
        path: The page's own file, from which it shows the pictures in `results`.
        command: What writes the page.

    Raises:
        ValueError: `results` holds no report, or a damaged one.
    """
    files = {name: results / f"{name}.json" for name in HEADINGS}
    reports = {name: read(file) for name, file in files.items() if file.exists()}
    if not reports:
        raise ValueError(
            f"`results` must hold what a benchmark saved, such as {files['operators'].name}, got "
            f"{results} without any"
        )
    parts = [INTRODUCTION.format(command=command, folder=results.as_posix()), _targets(reports)]
    pictures = Path(os.path.relpath(results, path.parent)).as_posix()
    for name, report in reports.items():
        parts.append(f"## {HEADINGS[name]}")
        parts += _section(report)
        parts.append(f"![{name}]({pictures}/{name}.png)")
    return "\n\n".join(parts) + "\n"


def _targets(reports: Mapping[str, Report]) -> str:
    """What was set out to reach, and which reports are doubtful."""
    lines = [target.line(reports.get(target.bench)) for target in TARGETS]
    doubts = [f"**{name}: {r.noise}.**" for name, r in reports.items() if r.noise]
    rows = table(("target", "limit", "found, best to worst", ""), lines)
    return "\n\n".join(["## Targets", *doubts, rows])


def _section(report: Report) -> list[str]:
    environment = report.environment
    commit = (environment["commit"] or "")[:12] or f"version {environment['neural_similarity']}"
    dirty = " with local changes" if str(environment["commit"]).endswith("-dirty") else ""
    others = "unknown" if report.others is None else f"{report.others:.2f} cores"
    facts = f"`{environment['command']}` on {report.machine}; code {commit}{dirty}; "
    facts += f"other processes: {others}; baselines' quartiles at most {report.spread:.1%} apart."
    parts = [facts, NOTES[report.bench]]
    if report.noise:
        parts.append(f"**{report.noise}**")
    measured, report = report, current(report)
    parts += _note_left_out(measured, report) + _caveats(report)
    if report.bench in ("operators", "scaling"):
        parts += _pivots(report)
    else:
        for rows in grouped(report.rows):
            parts += [f"### {title(rows[0].group)}", comparison(rows)]
    return parts


def _note_left_out(before: Report, after: Report) -> list[str]:
    """What is no longer what its name says; the picture was drawn when it was."""
    names = dict.fromkeys(f"`{row.name}`" for row in before.rows if row not in after.rows)
    if not names:
        return []
    text = (
        "Left out, as these or the one that they are compared with have other settings by now: "
        f"{', '.join(names)}. The picture has them still."
    )
    return [text]


def _caveats(report: Report) -> list[str]:
    """What was otherwise when a report was made."""
    facts, found = report.environment, []
    if not facts.get("keeps_memory", report.bench in ("scaling", "recipes")):
        found.append(
            "Measured while freed blocks of more than 32 MiB went back to the system, so that what "
            "uses such buffers, as unfold and the TensorFlow form do, pays for their pages in "
            "every call."
        )
    if report.bench in ("training", "inference") and "similarities" not in facts:
        found.append(
            "Measured when no predictor had batch normalisation. `dynamic-diagonal` still has "
            "none; the recipes after which the other rows are named have it today. Since then "
            "batch normalisation, pool and ReLU have become one operator in C: networks, the plain "
            "one too, are faster today."
        )
    return found


def _pivots(report: Report) -> list[str]:
    """Ratios, then memory, of every dtype and similarity."""
    parts = []
    for words, rows in split(report.rows).items():
        parts += [f"### {words}", _pivot(rows, _ratios), "Saved bytes a position; peak MiB."]
        parts.append(_pivot(rows, _memory))
    return parts


def _pivot(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A line a name, a column a size."""
    columns = grouped(rows)
    head = ["", *(_size(group[0]) for group in columns)]
    names = dict.fromkeys(row.name for row in rows)
    by_name = [{row.name: cell(row) for row in group} for group in columns]
    return table(head, ([name, *(cells.get(name, "") for cells in by_name)] for name in names))


def _size(row: Row) -> str:
    return "{channels}@{size}×{size}, {batch}".format(**row.group)


def _ratios(row: Row) -> str:
    if row.baseline:
        return " / ".join(f"{1e3 * timing.seconds:.3g} ms" for timing in row.times.values())
    return row.problem or " / ".join(f"{timing.ratio:.2f}" for timing in row.times.values())


def _memory(row: Row) -> str:
    saved, peak = row.costs.get("saved_bytes"), row.costs.get("peak_bytes")
    if saved is None:
        return ""
    return f"{saved:,.0f}; " + ("unknown" if peak is None else f"{peak / 2**20:,.1f}")
