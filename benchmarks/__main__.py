"""`python -m benchmarks`: time and memory beside other implementations, and the page of it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import benchmarks
from benchmarks import Case, FewShotCase, Report, Row, Setting, Watch
from benchmarks.case import Kind
from benchmarks.networks import PLAIN, texts
from benchmarks.options import (
    QUICK_BATCH,
    QUICK_TASKS,
    QUICK_WIDTH,
    FewShotOptions,
    InferenceOptions,
    OperatorsOptions,
    Options,
    PageOptions,
    RecipesOptions,
    ScalingOptions,
    Shape,
    TrainingOptions,
)
from benchmarks.quiet import others_now
from neural_similarity.lab.cli import exit_code
from neural_similarity.lab.cli.commands import Commands, dispatch, say
from neural_similarity.lab.cli.parsing import parse
from neural_similarity.lab.paper.costs import MOST_OTHERS
from neural_similarity.lab.recipes import RECIPES
from neural_similarity.lab.train import Runtime, choose_runtime
from neural_similarity.lab.train.environment import describe_environment
from neural_similarity.lab.train.files import write_text
from neural_similarity.lab.train.memory import keep_freed_memory
from neural_similarity.lab.train.recipe import recipe_to_json

PROGRAM = "python -m benchmarks"


def main(args: Sequence[str] | None = None) -> int:
    """Run one benchmark and return its exit code, 1 if a result is wrong."""

    def run() -> int:
        return dispatch(
            sys.argv[1:] if args is None else args,
            BENCHES,
            prog=PROGRAM,
            kind="benchmark",
            about="Measure time and memory beside other implementations, each checked first.",
            examples=f"  {PROGRAM} operators\n  {PROGRAM} training --dtype bf16",
        )

    return exit_code(run)


def operators(args: Sequence[str]) -> int:
    """Our operators beside other formulations and other operators."""
    options = _parse(OperatorsOptions, args, "operators", "--batch 32 --shapes 64x16,128x8")
    kinds = get_args(Kind) if options.similarity == "both" else (options.similarity,)
    batches, shapes = options.batch, options.shapes
    if options.quick:
        batches, shapes = (QUICK_BATCH,), (Shape(8, 8),)
    cases = [
        _case(runtime, kind, batch, shape)
        for runtime in options.runtimes
        for kind in kinds
        for shape in shapes
        for batch in batches
    ]
    return _run(
        "operators", options, lambda: benchmarks.operators(cases, options.counts, options.effort)
    )


def scaling(args: Sequence[str]) -> int:
    """Our operators as batches and images grow, with one thread and more."""
    options = _parse(ScalingOptions, args, "scaling", "--batch 1,2,4,8 --size 32,64 --threads 1")
    batches, sizes, channels = options.batch, options.size, options.channels
    if options.quick:
        batches, sizes, channels = (1, 2), (8, 12), 4
    fixed = batches[min(1, len(batches) - 1)]

    def cases(points: Sequence[tuple[int, int]]) -> list[Case]:
        return [
            _case(runtime, "diagonal", batch, Shape(channels, size))
            for runtime in options.runtimes
            for batch, size in points
        ]

    sweeps = {
        "by batch": cases([(batch, sizes[0]) for batch in batches]),
        "by size": cases([(fixed, size) for size in sizes]),
    }
    return _run(
        "scaling", options, lambda: benchmarks.scaling(sweeps, options.counts, options.effort)
    )


def training(args: Sequence[str]) -> int:
    """Updates of CNN-9, and the loop of `nsim train` beside a bare one."""
    options = _parse(TrainingOptions, args, "training", "--similarity dynamic-full --dtype bf16")

    def rows() -> list[Row]:
        found = []
        for setting in _settings(options, options.batch):
            subjects = [setting.subject(name) for name in (PLAIN, *options.similarity)]
            found += benchmarks.training_steps(
                setting, "updates of CNN-9", subjects, options.counts, options.effort
            )
            found += benchmarks.training_loops(setting, options.counts, options.effort)
        return found

    return _run("training", options, rows, similarities=texts(options.similarity))


def recipes(args: Sequence[str]) -> int:
    """Updates of the networks of recipes."""
    options = _parse(RecipesOptions, args, "recipes", "--recipes cifar10-cnn,cifar10-deformable")

    def rows() -> list[Row]:
        found = []
        for setting in _settings(options, options.batch):
            subjects = [setting.recipe(name) for name in options.recipes]
            found += benchmarks.training_steps(
                setting, "updates by recipe", subjects, options.counts, options.effort
            )
        return found

    configs = {name: recipe_to_json(RECIPES[name]) for name in options.recipes}
    return _run("recipes", options, rows, recipes=configs)


def inference(args: Sequence[str]) -> int:
    """CNN-9 in evaluation mode, plain, static, folded and dynamic."""
    options = _parse(InferenceOptions, args, "inference", "--batch 1,16 --threads 1,2")

    def rows() -> list[Row]:
        found = []
        for setting in _settings(options, options.batch):
            found += benchmarks.inference(
                setting, options.similarity, options.counts, options.effort
            )
        return found

    return _run("inference", options, rows, similarities=texts(options.similarity))


def few_shot(args: Sequence[str]) -> int:
    """A task of second-order MAML, and ProtoNet on features that are kept."""
    options = _parse(FewShotOptions, args, "fewshot", "--size 32 --threads 1,2")
    (runtime,) = options.runtimes
    case = FewShotCase(runtime=runtime, image_size=options.size, tasks=options.tasks)
    if options.quick:
        case = replace(case, image_size=16, width=QUICK_WIDTH, tasks=QUICK_TASKS)

    def rows() -> list[Row]:
        return [
            *benchmarks.meta_gradients(case, options.counts, options.effort),
            *benchmarks.kept_features(case, options.counts, options.effort),
        ]

    return _run("fewshot", options, rows)


def page(args: Sequence[str]) -> int:
    """Write the page of what the benchmarks saved, beside the targets."""
    options = _parse(PageOptions, args, "page", "--out docs/performance.md")
    command = f"{PROGRAM} page --results {options.results} --out {options.out}"
    text = benchmarks.page(options.results, options.out, command)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    say(str(options.out))
    return 0


BENCHES: Commands = {
    "operators": (operators, "our operators beside other formulations and operators"),
    "scaling": (scaling, "our operators as batches and images grow"),
    "training": (training, "updates of CNN-9, and the training loop beside a bare one"),
    "recipes": (recipes, "updates of the networks of the tables"),
    "inference": (inference, "CNN-9 plain, static, folded and dynamic"),
    "fewshot": (few_shot, "second-order MAML, and ProtoNet on features that are kept"),
    "page": (page, "write docs/performance.md from what the others saved"),
}
"""The benchmarks by name."""


def _run(name: str, options: Options, rows: Callable[[], list[Row]], **facts: Any) -> int:
    """Measure, print, save with the environment and `facts`, and draw; the exit code."""
    if not options.quick and (others_now() or 0.0) > MOST_OTHERS:
        sys.stderr.write("nsim: the machine is not quiet: other processes are at work\n")
    facts["keeps_memory"] = keep_freed_memory()
    watch = Watch()
    found = tuple(rows())
    report = Report(
        bench=name,
        environment=_environment(options) | facts,
        quick=options.quick,
        others=watch.others(),
        rows=found,
    )
    sys.stdout.write(benchmarks.to_markdown(report))
    path, picture = benchmarks.write(report, options.out), options.out / f"{name}.png"
    (benchmarks.draw_growth if name == "scaling" else benchmarks.draw_ratios)(report, picture)
    say(f"\n{path}\n{picture}")
    if report.noise:
        sys.stderr.write(f"nsim: do not rely on these times: {report.noise}\n")
    for row in report.wrong:
        sys.stderr.write(f"nsim: {row.name} is {row.problem}\n")
    return 1 if report.wrong else 0


def _environment(options: Options) -> dict[str, Any]:
    runtime = choose_runtime(options.device, "fp32")
    return describe_environment(runtime) | {"precision": options.dtype}


def _case(runtime: Runtime, kind: Kind, batch: int, shape: Shape) -> Case:
    return Case(
        kind=kind,
        dtype=runtime.precision,
        batch=batch,
        channels=shape.channels,
        size=shape.size,
        device=runtime.device,
    )


def _settings(options: Options, batches: Sequence[int]) -> list[Setting]:
    if options.quick:
        batches, width = (QUICK_BATCH,), QUICK_WIDTH
    else:
        width = 1.0
    return [
        Setting(runtime=runtime, batch=batch, width=width)
        for runtime in options.runtimes
        for batch in batches
    ]


def _parse(kind, args: Sequence[str], name: str, example: str):
    """The options of a benchmark."""
    description = (
        f"{_sentence(name)}\n\nexamples:\n  {PROGRAM} {name}\n  {PROGRAM} {name} {example}"
    )
    return parse(kind, args, command=name, program=PROGRAM, description=description, flags=True)


def _sentence(name: str) -> str:
    text = BENCHES[name][1]
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
