"""`nsim export`: the network of a run in a file for other programs, checked on images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from torch import Tensor, nn

from neural_similarity.conversion import fold, unfreeze_backbone
from neural_similarity.files import new_file
from neural_similarity.lab.cli.commands import print_line
from neural_similarity.lab.cli.parsing import parse_options
from neural_similarity.lab.cli.runs import DataOptions, dataset_of, open_class_run, require_foldable
from neural_similarity.lab.data import ImageSet
from neural_similarity.lab.errors import UsageError
from neural_similarity.lab.tasks.baselines import merge_baselines
from neural_similarity.lab.train import Run, choose_runtime, predict_logits, score_logits
from neural_similarity.lab.train.exporting import (
    ROUNDED,
    TOLERANCE,
    WRITERS,
    NetworkFunction,
    TimeIsUp,
    compare_logits,
    facts_of,
    logits_of,
    pads_by_size,
    quantise_network,
    require_libraries,
    time_limit,
    trace_network,
)
from neural_similarity.lab.train.progress import print_notice
from neural_similarity.lab.train.run import load_network
from neural_similarity.lab.train.runtime import SCORE_PRECISION
from neural_similarity.lab.train.weights import load_weights, packed_weights

T = TypeVar("T")
BATCH, TRIED_BATCHES = 50, (1, 7)
CALIBRATION = 10
"""Batches of training images that tell the ranges of activations."""
LIMIT = 120.0
"""Seconds of CPU time that an export for any image size may take."""
DESCRIPTION = """Write a run's network for other programs, and score the file on the run's images.

onnx runs in onnxruntime, pt2 by torch.export.load, safetensors are weights. The file says how
images are resized, cropped and normalised; its accuracy on the test images is printed beside that
of nsim evaluate. Batch and size stay free, where the network itself leaves them free. The size is
fixed for networks that compute their padding from it (timm's tf_*) and where a free one takes over
two minutes. --int8 quantises by PyTorch's pt2e (torchao).

examples:
  nsim export runs/quickstart-seed0 --format onnx
  nsim export runs/adapt-seed0 --format onnx --int8
  nsim export runs/cifar10-static-dns-seed0 --format safetensors --fold"""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DataOptions):
    """Options of `nsim export`."""

    format: Literal["onnx", "pt2", "safetensors"] = "onnx"
    """Format of the file."""
    fold: bool = False
    """Fold static similarities into the kernels first: torch's plain layers, at no cost."""
    int8: bool = False
    """Quantise to eight bits; folds first, as quantisation does not see M."""
    size: Literal["auto", "fixed", "free"] = "auto"
    """The image size of an onnx or pt2: the run's alone (fixed), any (free, however long that
    takes), or auto: free where that is quick."""
    out: Path | None = None
    """File to write; the default is network[-folded|-int8].FORMAT in the run folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.int8 and self.format == "safetensors":
            raise UsageError("--int8 needs the format onnx or pt2: safetensors hold only weights")

    @property
    def file_stem(self) -> str:
        return "network" + ("-int8" if self.int8 else "-folded" if self.fold else "")


def export(args: Sequence[str]) -> int:
    """Write the file, read it again, and say what was checked and how it scores."""
    options = parse_options(
        ExportOptions, args, prog="nsim export", description=DESCRIPTION, flags=True
    )
    require_libraries(options.format, int8=options.int8)
    run = open_class_run(options.run)
    dataset = dataset_of(run, options)
    model = unfreeze_backbone(load_network(run, options.checkpoint))
    whole = model
    if options.fold or options.int8:
        require_foldable(run, model)
        model = fold(merge_baselines(model)).eval()
    path = options.out or run.path / f"{options.file_stem}.{options.format}"
    with new_file(path) as file:
        if options.format == "safetensors":
            file.write(packed_weights(model, run.metadata | facts_of(run)))
            file.flush()
            x = _first_batch(run, dataset.test)
            written, lines = _read_weights(run, whole, Path(file.name), x, options.fold)
        else:
            parts = dataset.train, dataset.test
            written, lines = _export_program(run, model, file, parts, options)
    print_line(f"{path}: {path.stat().st_size / 1000:,.1f} kB")
    for line in lines:
        print_line(line)
    kind = "int8" if options.int8 else options.format
    print_line(f"{kind}: {_score_text(run, whole, written, dataset.test)}")
    return 0


def _read_weights(
    run: Run, model: nn.Module, path: Path, x: Tensor, folded: bool
) -> tuple[nn.Module, list[str]]:
    """A network that reads the file, and how far it is from the run's own."""
    again = fold(merge_baselines(run.build())) if folded else run.build()
    load_weights(path, again)
    worst, _ = compare_logits(model, again.eval(), x, TRIED_BATCHES)
    kind = "similarity=None" if folded else "as the run has it"
    return again, [f"read into a new network ({kind}): max |Δlogit| {worst:.2e}"]


def _export_program(
    run: Run,
    model: nn.Module,
    file: BinaryIO,
    parts: tuple[ImageSet, ImageSet],
    options: ExportOptions,
) -> tuple[NetworkFunction, list[str]]:
    """The network that is read from the file, and what was checked, in lines."""
    train, test = parts
    x, facts = _first_batch(run, test), facts_of(run)

    def write(free: bool) -> tuple[nn.Module, NetworkFunction]:
        """The exported network, and the one that is read from its file."""
        sizes = "any size" if free else f"{run.image_size} pixels alone"
        print_notice(f"exporting for images of {sizes}")
        network = model
        if options.int8:
            batches = islice(_image_batches(run, train), CALIBRATION)
            network = quantise_network(model, x, batches, free)
        file.seek(0)
        file.truncate()
        return network, WRITERS[options.format](trace_network(network, x, free), file, facts)

    network, written = _in_time(write, options.size, pads_by_size(model))
    print_notice("comparing the file with torch")
    worst, sizes = compare_logits(
        network, written, x, TRIED_BATCHES, ROUNDED if options.int8 else TOLERANCE
    )
    reader = "onnxruntime" if options.format == "onnx" else "torch.export.load"
    agrees = (
        f"{reader} agrees with torch{' in int8' * options.int8} on {len(x)} test images: max "
        f"|Δlogit| {worst:.2e}, in batches of {', '.join(map(str, TRIED_BATCHES))} and the rest, "
        f"at {' and '.join(map(str, sizes))} pixels"
    )
    alone = [f"the file takes images of {sizes[0]} pixels alone"] * (len(sizes) == 1)
    return written, [agrees, *alone]


def _score_text(run: Run, model: nn.Module, written: NetworkFunction, test: ImageSet) -> str:
    """The accuracy of the network that was read from a file, and that of the run's own."""
    print_notice(f"scoring the file on {len(test):,} test images")
    runtime = choose_runtime("cpu", SCORE_PRECISION, run.recipe.channels_last)
    run_logits = predict_logits(runtime.place_model(model), test, run.preprocess, runtime)
    file_logits = logits_of(written, _image_batches(run, test))
    shares = [
        100 * score_logits(logits, test.labels).accuracy for logits in (file_logits, run_logits)
    ]
    equal = (file_logits.argmax(1) == run_logits.argmax(1)).double().mean().item()
    return (
        f"accuracy {shares[0]:.2f} %, the run's {shares[1]:.2f} %, on {len(test):,} test images; "
        f"{100 * equal:.2f} % of the answers are equal"
    )


def _in_time(write: Callable[[bool], T], size: str, by_size: bool) -> T:
    """What `write` returns for free sizes, or for a fixed one where free ones are not quick."""
    if size != "auto" or by_size:
        return write(size == "free")
    try:
        with time_limit(LIMIT):
            return write(True)
    except TimeIsUp:
        print_notice(f"it is not done after {LIMIT:g} s; --size free would go on")
        return write(False)


def _image_batches(run: Run, images: ImageSet) -> Iterator[Tensor]:
    return (run.preprocess(chunk).contiguous() for chunk in images.chunks(BATCH))


def _first_batch(run: Run, images: ImageSet) -> Tensor:
    return run.preprocess(images.head(BATCH)).contiguous()
