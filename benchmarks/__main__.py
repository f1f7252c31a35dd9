"""`python -m benchmarks`: time and memory beside other implementations, and the page of it."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from benchmarks import distributed, few_shot, loops, networks, performance, subjects
from benchmarks.case import KINDS, Case
from benchmarks.measure import Watch
from benchmarks.networks import KNOWN, NETWORKS, PREDICTORS, Setting, texts
from benchmarks.options import COMPARED, PROGRAM, Options, PageOptions, given
from benchmarks.plots import draw
from benchmarks.report import Report, Row, to_markdown, write
from neural_similarity.lab.cli import exit_code
from neural_similarity.lab.cli.commands import Commands, dispatch, require, say
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.environment import describe_environment
from neural_similarity.lab.train.files import write_text
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.recipe import recipe_to_json

ON_A_GPU = f"  {PROGRAM} operators --device cuda --dtype bf16 --batch 128 --out benchmarks/h200"
EXTENT = 1024
"""Channels times size of the operators' maps, as in networks that halve one to double the other."""
WIDTHS, QUICK_WIDTHS = ((64, 56), (128, 28), (256, 14), (512, 7)), ((8, 6),)
"""Channels and size of a ResNet's maps."""
SCALED_CHANNELS = 32
SIMILARITIES = ("static-diagonal", "static-full", "dynamic-diagonal", *PREDICTORS)
QUICK_EXTENT, QUICK_WIDTH, QUICK_TASKS = 64, 0.1, 20


def main(args: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code, 1 if a result is wrong."""
    commands: Commands = {
        **{name: (partial(_run, name), bench.about) for name, bench in BENCHES.items()},
        "distributed": (distributed.main, distributed.ABOUT),
        "page": (_page, "write docs/performance.md from what the others saved"),
    }

    def run() -> int:
        return dispatch(
            sys.argv[1:] if args is None else args,
            commands,
            prog=PROGRAM,
            kind="benchmark",
            about="Measure time and memory beside other implementations, each checked first.",
            examples=f"  {PROGRAM} operators\n  {PROGRAM} training --dtype bf16\n{ON_A_GPU}",
        )

    return exit_code(run)


def _operators(options: Options) -> Iterator[Row]:
    extent = QUICK_EXTENT if options.quick else EXTENT
    shapes = product(options.size, options.channels, options.batch)
    for runtime, kind, shape in product(options.runtimes, options.similarity, shapes):
        size, channels, batch = shape
        width = channels or extent // size
        case = Case(kind=kind, runtime=runtime, batch=batch, channels=width, size=size)
        yield from subjects.operators(case, options.effort)


def _widths(options: Options) -> Iterator[Row]:
    shapes = QUICK_WIDTHS if options.quick else WIDTHS
    for layout, runtime in _layouts(options):
        for kind, shape, batch in product(options.similarity, shapes, options.batch):
            channels, size = shape
            case = Case(kind=kind, runtime=runtime, batch=batch, channels=channels, size=size)
            yield from subjects.widths(layout, case, options.effort)


def _layouts(options: Options) -> Iterator[tuple[str, Runtime]]:
    for runtime in options.runtimes:
        yield "channels last", runtime
        yield "NCHW", replace(runtime, channels_last=False)


def _scaling(options: Options) -> Iterator[Row]:
    batches, sizes = options.batch, options.size
    fixed = batches[min(1, len(batches) - 1)]
    sweeps = [("by batch", batch, sizes[0]) for batch in batches]
    sweeps += [("by size", fixed, size) for size in sizes]
    for runtime, (sweep, batch, size) in product(options.runtimes, sweeps):
        case = Case(
            kind="diagonal", runtime=runtime, batch=batch, channels=SCALED_CHANNELS, size=size
        )
        yield from subjects.scaling(sweep, case, options.effort)


def _training(options: Options) -> Iterator[Row]:
    for setting in _settings(options):
        yield from networks.training(setting, options.similarity, options.effort)
        yield from loops.training_loops(setting, options.effort)


def _networks(options: Options) -> Iterator[Row]:
    names = ("U-Net",) if options.quick else NETWORKS
    for layout, runtime in _layouts(options):
        for name, batch, size in product(names, options.batch, options.size):
            setting = Setting(runtime=runtime, batch=batch, size=size, rounding=1e-6)
            make = NETWORKS[name]
            yield from networks.whole(f"updates of {name}, {layout}", setting, make, options.effort)


def _recipes(options: Options) -> Iterator[Row]:
    for setting in _settings(options):
        yield from networks.recipes(setting, options.recipes, options.effort)


def _inference(options: Options) -> Iterator[Row]:
    for setting in _settings(options):
        yield from networks.inference(setting, options.similarity, options.effort)


def _settings(options: Options) -> Iterator[Setting]:
    width = QUICK_WIDTH if options.quick else 1.0
    for runtime, batch in product(options.runtimes, options.batch):
        yield Setting(runtime=runtime, batch=batch, width=width)


def _few_shot(options: Options) -> Iterator[Row]:
    small = {"width": QUICK_WIDTH, "tasks": QUICK_TASKS} if options.quick else {}
    for runtime, size in product(options.runtimes, options.size):
        case = few_shot.FewShotCase(runtime=runtime, image_size=size, **small)
        yield from few_shot.meta_gradients(case, options.effort)
        yield from few_shot.kept_features(case, options.effort)


class Bench(NamedTuple):
    rows: Callable[[Options], Iterator[Row]]
    about: str
    default: Options
    """Options that are not given."""
    quick: dict[str, Any]
    """Options of a quick run."""
    similarities: Collection[str] = KNOWN
    """What `similarity` may name."""


BENCHES = {
    "operators": Bench(
        _operators,
        "our operators beside other formulations and operators",
        Options(rounds=9, batch=(32, 128), size=(32, 16, 8), channels=(0,), similarity=KINDS),
        {"batch": (2,), "size": (8,)},
        similarities=KINDS,
    ),
    "scaling": Bench(
        _scaling,
        "our operators as batches and images grow",
        Options(
            dtype="fp32",
            rounds=7,
            threads=(1, 2),
            batch=(1, 4, 16, 64, 256),
            size=(32, 64, 112, 160, 224),
        ),
        {"batch": (1, 2), "size": (8, 12)},
    ),
    "widths": Bench(
        _widths,
        "our operators and layers at a ResNet's widths, in both layouts",
        Options(dtype="fp32", rounds=7, threads=(1,), batch=(8,), similarity=KINDS),
        {"batch": (2,)},
        similarities=KINDS,
    ),
    "training": Bench(
        _training,
        "updates of CNN-9, and the training loop beside a bare one",
        Options(batch=(128,), similarity=SIMILARITIES),
        {"batch": (2,)},
    ),
    "networks": Bench(
        _networks,
        "updates of whole networks, plain and converted, in both layouts",
        Options(dtype="fp32", rounds=5, threads=(1,), batch=(8, 32), size=(160,)),
        {"batch": (2,), "size": (32,)},
    ),
    "recipes": Bench(
        _recipes,
        "updates of the networks of the tables",
        Options(dtype="bf16", batch=(128,), recipes=COMPARED),
        {"batch": (2,)},
    ),
    "inference": Bench(
        _inference,
        "CNN-9 plain, static, folded and dynamic",
        Options(batch=(1, 128), similarity=SIMILARITIES),
        {"batch": (2,)},
    ),
    "fewshot": Bench(
        _few_shot,
        "second-order MAML, and ProtoNet on features that are kept",
        Options(dtype="fp32", rounds=7, size=(84,)),
        {"size": (16,)},
    ),
}


def _run(name: str, args: Sequence[str]) -> int:
    """Measure, print, save with the environment, and draw; the exit code."""
    options = _options(name, args)
    environment = describe_environment(choose_runtime(options.device, "fp32")) | {
        "precision": options.dtype,
        "similarities": texts(name for name in options.similarity if name in KNOWN),
        "recipes": {name: recipe_to_json(RECIPES[name]) for name in options.recipes},
        "keeps_memory": keep_freed_memory(),
        "norms": "torch",
    }
    watch = Watch()
    report = Report(bench=name, environment=environment, quick=options.quick, others=None, rows=())
    unfinished = options.out / "unfinished"
    for row in BENCHES[name].rows(options):  # What is cut off keeps what it has measured.
        report = replace(report, rows=(*report.rows, row), others=watch.others())
        write(report, unfinished)
    rows = report.rows
    sys.stdout.write(to_markdown(report))
    path, picture = write(report, options.out), options.out / f"{name}.png"
    (unfinished / path.name).unlink()
    draw(report, picture)
    say(f"\n{path}\n{picture}")
    if report.noise:
        sys.stderr.write(f"nsim: do not rely on these times: {report.noise}\n")
    wrong = [row for row in rows if row.wrong]
    for row in wrong:
        sys.stderr.write(f"nsim: {row.name} is {row.problem}\n")
    return 1 if wrong else 0


def _options(command: str, args: Sequence[str]) -> Options:
    bench = BENCHES[command]
    options = given(bench.default, args, command, bench.about)
    for option in ("batch", "size", "channels", "similarity", "recipes"):
        if getattr(options, option) and not getattr(bench.default, option):
            raise UsageError(f"`{option}` is not an option of {command}")
    for name in options.similarity:
        require("similarity", name, bench.similarities)
    return replace(options, rounds=3, **bench.quick) if options.quick else options


def _page(args: Sequence[str]) -> int:
    """Write the page of what the benchmarks saved, beside the targets."""
    about = "write a page of what the benchmarks saved"
    options = given(PageOptions(), args, "page", about)
    folders = options.results
    words = " ".join(folder.as_posix() for folder in folders)
    command = f"{PROGRAM} page --results {words} --out {options.out.as_posix()}"
    if len(folders) == 1:
        text = performance.page(folders[0], options.out, command)
    else:
        text = performance.summary(folders, command)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    say(str(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
