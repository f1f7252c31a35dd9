"""Exporting networks to other programs: ONNX and torch.export, in float or int8."""

import contextlib
import io
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional as F

from neural_similarity.choices import import_optional, require_installed
from neural_similarity.lab.data import imagenet
from neural_similarity.lab.data.decoding import uncropped_side
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.run import Run

NetworkFunction = Callable[[Tensor], Tensor]
INPUT_NAME = "images"
TOLERANCE, ROUNDED = 1e-3, 0.05
"""Largest difference of a file's logits, relative to torch's largest logit, or to 1. Sums in
another order stay far below `TOLERANCE`; in int8 they may change how a number is rounded, hence
`ROUNDED`."""


class TimeIsUp(BaseException):
    """`time_limit` is over; torch's and sympy's `except Exception` must not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` after so many seconds of CPU time; none on Windows and in other threads.

    It is raised again every second, as an exception inside of a destructor would be lost.
    """
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeIsUp

    handler = signal.signal(signal.SIGPROF, stop)
    timer = signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *timer)
        signal.signal(signal.SIGPROF, handler)


def require_libraries(form: str, *, int8: bool) -> None:
    """Check that what writes a format is installed."""
    for module in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
        require_installed(module, "--format onnx", "export")
    if int8:
        require_installed("torchao", "int8", "export")


def pads_by_size(model: nn.Module) -> bool:
    """Whether layers compute their padding from the image size, as TensorFlow's "same" does.

    timm's names of such classes end with it. With free sizes every layer nests another rounded
    division, which torch.export takes apart for minutes to hours.
    """
    return any(type(layer).__name__.endswith("Same") for layer in model.modules())


def trace_network(model: nn.Module, x: Tensor, free: bool = True) -> ExportedProgram:
    """The network exported by torch.export, for any batch.

    If `free`, it is for every image size that the network accepts, else for that of `x`.
    """
    dims = (0, 2, 3) if free else (0,)
    return export(model, (x,), dynamic_shapes=(dict.fromkeys(dims, Dim.AUTO),))


def quantise_network(
    model: nn.Module, x: Tensor, batches: Iterable[Tensor], free: bool = True
) -> nn.Module:
    """The network with convolutions and linear layers in int8, by PyTorch's pt2e and torchao.

    Kernels are quantised by channel; activation ranges are calibrated on `batches`. Fold first:
    layers with a similarity would stay in float.
    """
    home = "torchao.quantization.pt2e"
    steps = import_optional(f"{home}.quantize_pt2e", "int8", "export")
    x86 = import_optional(f"{home}.quantizer.x86_inductor_quantizer", "int8", "export")
    settings = x86.get_default_x86_inductor_quantization_config()
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    prepared = steps.prepare_pt2e(trace_network(model, x, free).module(), quantizer)
    with torch.no_grad():
        for batch in batches:
            prepared(batch)
    return steps.convert_pt2e(prepared)


def write_pt2(
    program: ExportedProgram, file: BinaryIO, facts: Mapping[str, str]
) -> NetworkFunction:
    """Write a file for `torch.export.load`, and return the network that it loads from it."""
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=dict(facts))
    file.write(content.getvalue())
    content.seek(0)
    return torch.export.load(content).module()


def write_onnx(
    program: ExportedProgram, file: BinaryIO, facts: Mapping[str, str]
) -> NetworkFunction:
    """Write an ONNX file with `facts` as metadata, and return onnxruntime's network of it."""
    runtime = import_optional("onnxruntime", "--format onnx", "export")
    ir = import_optional("onnxscript.ir", "--format onnx", "export")
    try:
        written = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=[INPUT_NAME], output_names=["logits"]
        )
    except torch.onnx.OnnxExporterError as error:  # It lists steps; its cause says what is wrong.
        reason = error.__cause__ or error
        raise RunError(
            f"torch.onnx cannot write the network: {reason}; try --format pt2"
        ) from error
    if written is None:
        raise RunError("torch.onnx returned no program")
    _keep_zeros(written.model.graph, ir)
    written.model.metadata_props.update(facts)
    content = written.model_proto.SerializeToString()
    file.write(content)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {INPUT_NAME: x.numpy()})[0])


WRITERS: dict[str, Callable[[ExportedProgram, BinaryIO, Mapping[str, str]], NetworkFunction]] = {
    "onnx": write_onnx,
    "pt2": write_pt2,
}


def _keep_zeros(graph: Any, ir: Any) -> None:
    """Put the maximum of one tensor, which changes nothing, between every MaxPool and a Pad.

    onnxruntime would merge the two, and the padding of MaxPool is -inf, not zeros.
    """
    for node in ir.traversal.RecursiveGraphIterator(graph):
        source = node.inputs[0].producer() if node.op_type == "MaxPool" else None
        while source is not None and source.op_type == "Cast":
            source = source.inputs[0].producer()
        if source is not None and source.op_type == "Pad":
            maximum = ir.node("Max", [node.inputs[0]])
            node.graph.insert_before(node, maximum)
            node.replace_input_with(0, maximum.outputs[0])


@torch.no_grad()
def compare_logits(
    model: nn.Module,
    other: NetworkFunction,
    x: Tensor,
    batches: Sequence[int],
    tolerance: float = TOLERANCE,
) -> tuple[float, list[int]]:
    """The largest difference of two networks' logits, and the image sizes that both accept.

    Args:
        model: the network in torch.
        other: the network read from a file.
        x: images (n, c, h, w), of a size that `model` accepts; a larger size is tried as well. They
            are repeated if the batches need more.
        batches: sizes of successive batches; the remaining images are one more batch.
        tolerance: largest difference over the largest logit, or over 1 if that is larger.

    Raises:
        RunError: the logits differ by more or in shape, or are not finite, or `other` accepts no
            other batch size.
    """
    x = x.repeat(-(-sum(batches) // len(x)), 1, 1, 1)
    side = x.shape[2]
    larger = F.interpolate(x, size=(side * 5 // 4,) * 2, mode="bilinear")
    parts = list(batches) + [len(x) - sum(batches)] * (len(x) > sum(batches))
    worst, sizes = 0.0, []
    for images in (x, larger):
        try:
            wanted = model(images)
            got = torch.cat([other(part) for part in images.split(parts)])
        except Exception as error:  # onnxruntime and torch raise errors of their own
            if images is x:
                raise RunError(f"the file takes no other batch sizes: {error}") from error
            continue
        if got.shape != wanted.shape:
            theirs, ours = tuple(got.shape), tuple(wanted.shape)
            raise RunError(f"the file's logits have the shape {theirs}, the run's {ours}")
        sizes.append(images.shape[2])
        if not wanted.isfinite().all():
            if images is x:
                raise RunError("the run's logits are not all finite (did training diverge?)")
            continue
        difference = (got - wanted).abs().max().item()
        if not difference <= tolerance * max(1.0, wanted.abs().max().item()):
            raise RunError(f"the file's logits differ from the run's by {difference:.2e}")
        worst = max(worst, difference)
    return worst, sizes


@torch.no_grad()
def logits_of(network: NetworkFunction, images: Iterable[Tensor]) -> Tensor:
    """The logits of a network for batches of images."""
    return torch.cat([network(batch) for batch in images])


def facts_of(run: Run) -> dict[str, str]:
    """The facts that users of the file need, as texts: its classes, and how to make its input."""
    size = run.image_size
    resize = uncropped_side(size) if run.recipe.dataset == imagenet.NAME else size
    scale = {"mean": run.preprocess.mean, "std": run.preprocess.std}
    values = {"classes": run.classes, "image_size": size, "resize": resize, "crop": size} | scale
    how = (
        f"the shorter side resized to {resize} pixels, bilinear and antialiased; the central "
        f"{size}x{size}; float32 (batch, channels, height, width), (pixels / 255 - mean) / std, "
        "of 16 bits pixels / 65535"
    )
    return {"input": how} | {key: json.dumps(value) for key, value in values.items()}
