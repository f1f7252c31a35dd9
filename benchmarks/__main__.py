"""`python -m benchmarks`: time and memory beside other implementations, and the page of it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import exported, networks, performance, price, subjects
from benchmarks.case import KINDS
from benchmarks.measure import Watch
from benchmarks.networks import COMPARED, KNOWN, NETWORKS, PREDICTORS, texts_of
from benchmarks.options import PROGRAM, Options, PageOptions, given_options, without_folders
from benchmarks.report import Report, Row, to_markdown, write_report
from neural_similarity.files import write_text
from neural_similarity.lab.cli import exit_code
from neural_similarity.lab.cli.commands import (
    Commands,
    dispatch_command,
    print_line,
    require_known_name,
)
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import choose_runtime
from neural_similarity.lab.train.environment import describe_environment
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.recipe import recipe_to_json

ON_A_GPU = f"  {PROGRAM} operators --device cuda --dtype bf16 --batch 128 --out benchmarks/h200"
SIMILARITIES = ("static-diagonal", "static-full", "dynamic-diagonal", *PREDICTORS)
QUICK = {"batch": (2,), "size": (16,)}
FP32 = Options(dtype="fp32", rounds=7, threads=(1,))
Rows = Callable[[Options], Iterator[Row]]
BENCHES: dict[str, tuple[Rows, Options]] = {
    "operators": (
        subjects.operators,
        Options(rounds=9, batch=(32, 128), size=(32, 16, 8), similarity=KINDS),
    ),
    "widths": (subjects.widths, replace(FP32, batch=(8,), size=(56, 28, 14, 7), similarity=KINDS)),
    "layers": (subjects.layers, replace(FP32, rounds=9, batch=(1, 8), similarity=KINDS)),
    "training": (networks.training, Options(batch=(128,), similarity=SIMILARITIES)),
    "networks": (
        networks.whole_networks,
        replace(
            FP32,
            rounds=5,
            batch=(8, 32),
            size=(160,),
            network=("ResNet-18", "EfficientNet-Lite0", "U-Net"),
        ),
    ),
    "price": (
        price.price,
        Options(
            rounds=7,
            threads=(1,),
            network=("ResNet-18", "CNN-9", "EfficientNet-B0", "ResNet-50", "ConvNeXt-T"),
        ),
    ),
    "exported": (
        exported.exported,
        replace(FP32, batch=(1, 8), size=(160,), network=("ResNet-18",)),
    ),
    "recipes": (networks.recipes, Options(dtype="bf16", batch=(128,))),
    "inference": (networks.inference, Options(batch=(1, 128), similarity=SIMILARITIES)),
}
"""What measures and tells of itself, and its options where none are given; it takes no others."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code, 1 if a result is wrong."""
    commands: Commands = {
        **{name: (partial(_run, name), str(rows.__doc__)) for name, (rows, _) in BENCHES.items()},
        "page": (_page, str(_page.__doc__)),
    }

    def run() -> int:
        return dispatch_command(
            sys.argv[1:] if args is None else args,
            commands,
            prog=PROGRAM,
            noun="benchmark",
            about="Measure time and memory beside other implementations, each checked first.",
            examples=f"  {PROGRAM} operators\n  {PROGRAM} training --dtype bf16\n{ON_A_GPU}",
        )

    return exit_code(run)


def _run(name: str, args: Sequence[str]) -> int:
    """Measure, print, and save with the environment; the exit code."""
    options, recipes = _options(name, args), COMPARED if name == "recipes" else ()
    environment = describe_environment(choose_runtime(options.device, "fp32"))
    environment |= {
        "command": without_folders(environment["command"]),
        "precision": options.dtype,
        "similarities": texts_of(name for name in options.similarity if name in KNOWN),
        "recipes": {name: recipe_to_json(RECIPES[name]) for name in recipes},
        "keeps_memory": keep_freed_memory(),
        "norms": "torch",
    }
    watch = Watch()
    report = Report(bench=name, environment=environment, quick=options.quick, others=None, rows=())
    unfinished = options.out / "unfinished"
    for row in BENCHES[name][0](options):  # What is cut off keeps what it has measured.
        report = replace(report, rows=(*report.rows, row), others=watch.others())
        write_report(report, unfinished)
    sys.stdout.write(to_markdown(report))
    path = write_report(report, options.out)
    (unfinished / path.name).unlink()
    print_line(f"\n{path}")
    if report.noise:
        sys.stderr.write(f"nsim: do not rely on these times: {report.noise}\n")
    for row in filter(lambda row: row.problem, report.rows):
        sys.stderr.write(f"nsim: {row.name} is {row.problem}\n")
    return int(any(row.wrong or (row.baseline and row.problem) for row in report.rows))


def _options(name: str, args: Sequence[str]) -> Options:
    rows, default = BENCHES[name]
    options = given_options(default, args, name, str(rows.__doc__))
    for option in ("batch", "size", "similarity", "network"):
        if getattr(options, option) and not getattr(default, option):
            raise UsageError(f"`{option}` is not an option of {name}")
    for similarity in options.similarity:
        require_known_name(
            "similarity", similarity, KINDS if default.similarity == KINDS else KNOWN
        )
    for network in options.network:
        require_known_name("network", network, NETWORKS)
    taken = {option: value for option, value in QUICK.items() if getattr(default, option)}
    return replace(options, rounds=3, **taken) if options.quick else options


def _page(args: Sequence[str]) -> int:
    """Write docs/evidence/performance.md from what the others saved."""
    options = given_options(PageOptions(), args, "page", str(_page.__doc__))
    folders = options.results
    words = " ".join(folder.as_posix() for folder in folders)
    command = f"{PROGRAM} page --results {words} --out {options.out.as_posix()}"
    if len(folders) == 1:
        text = performance.page(folders[0], command)
    else:
        text = performance.summary(folders, command)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print_line(str(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
