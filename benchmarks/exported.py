"""Networks in other runtimes, from the files that `nsim export` writes."""

import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor, nn

from benchmarks.case import Case
from benchmarks.compare import Entrant, compare, cpu_clock
from benchmarks.networks import FOLDED, FORWARD, PLAIN, converted_network
from benchmarks.options import Options
from benchmarks.oracle import Errors, error_of
from benchmarks.report import Row
from neural_similarity.lab.train.exporting import INPUT_NAME, trace_network, write_onnx

NAMES = (
    PLAIN,
    f"static-full{FOLDED}",
    "dynamic-diagonal",
    "dynamic-full",
    "light-diagonal",
    "pooled-diagonal",
    "pooled-full",
)
NetworkFunction = Callable[[Tensor], Tensor]


def exported(options: Options) -> Iterator[Row]:
    """Networks in the runtimes that are installed, plain, folded and dynamic, in CPU time."""
    write = cache(_onnx_file)
    installed = {name: load for name, load in RUNTIMES.items() if find_spec(name.lower())}
    for case in options.cases(options.network):
        for (runtime, load), count in product(installed.items(), case.threads):
            entrants = [
                _entrant(case, name, *write(case.kind, name), partial(load, threads=count))
                for name in ((PLAIN, NAMES[-1]) if options.quick else NAMES)
            ]
            group = {"what": f"{case.kind} in {runtime}", "batch": case.batch, "size": case.size}
            yield from compare(group, entrants, replace(case, threads=(count,)), cpu_clock(case))


def _entrant(
    case: Case, name: str, network: nn.Module, content: bytes, seconds: float, load: Callable
) -> Entrant:
    images, session = case.images(case.batch).contiguous(), cache(lambda: load(content))

    def errors() -> Errors:
        with torch.no_grad():
            return {torch.float32: error_of(session()(images), network(images))}

    return Entrant(
        name=name,
        errors=errors,
        calls={FORWARD: lambda: session()(images)},
        costs={"export_seconds": lambda: seconds},
        may_fail=True,
    )


def _onnx_file(kind: str, name: str) -> tuple[nn.Module, bytes, float]:
    """A network, its file for any batch and size, and the CPU seconds that writing it took."""
    case = next(Options(dtype="fp32", batch=(2,), size=(64,)).cases((kind,)))
    network, file = converted_network(case, name).eval().requires_grad_(False), io.BytesIO()
    began = time.process_time()
    write_onnx(trace_network(network, case.images(2)), file, {})
    return network, file.getvalue(), time.process_time() - began


def _in_onnxruntime(content: bytes, threads: int) -> NetworkFunction:
    runtime = import_module("onnxruntime")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    providers = ["CPUExecutionProvider"]
    session = runtime.InferenceSession(content, settings, providers=providers)
    return lambda x: torch.from_numpy(session.run(None, {INPUT_NAME: x.numpy()})[0])


def _in_openvino(content: bytes, threads: int) -> NetworkFunction:
    core = import_module("openvino").Core()
    exact = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(core.read_model(content), "CPU", exact)
    request = model.create_infer_request()
    return lambda x: torch.from_numpy(request.infer([x.numpy()])[0])


RUNTIMES: Mapping[str, Callable[..., NetworkFunction]] = {
    "onnxruntime": _in_onnxruntime,
    "OpenVINO": _in_openvino,
}
"""Runtimes, whose modules have these names in small letters."""
