"""`nsim export`: what other programs compute is what the run computes, or an error says so."""

import contextlib
import io
import json
import re
import signal
from dataclasses import replace
from functools import partial

import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from refusals import refusals
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_images import TINY, make_dataset, tiny_world
from torch import nn
from torch.export import export as export_program
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from neural_similarity.lab import session
from neural_similarity.lab.cli import export as command
from neural_similarity.lab.cli import runs
from neural_similarity.lab.data import Preprocess
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.session import load
from neural_similarity.lab.train import pack_correct
from neural_similarity.lab.train.exporting import (
    compare_logits,
    facts_of,
    pads_by_size,
    trace_network,
    write_onnx,
)

pytestmark = [
    pytest.mark.usefixtures("tiny"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]
LONG = pytest.mark.long


def unanswered(x):
    """A network without an answer."""
    return torch.zeros(len(x), 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of a network of any size, trained in bf16; its M is away from the identity."""
    with tiny_world():
        fields = {"model": "resnet20", "width": 0.5, "lr": 0.05, "precision": "bf16"}
        recipe = replace(TINY, similarity="static-full", **fields)
        return session.train(recipe, out=tmp_path_factory.mktemp("run") / "run", device="cpu")


@pytest.fixture
def export(run, nsim):
    """Exports the run; what the command prints."""
    return partial(nsim, f"export {run.path} --device cpu")


def test_what_onnx_cannot_write_is_told_in_a_line(export, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise torch.onnx.OnnxExporterError("\x1b[96mstep 2/3\x1b[0m") from MemoryError("no room")

    monkeypatch.setattr(torch.onnx, "export", fail)
    told = export("--out", tmp_path / "network.onnx", code=1).err
    cause = "nsim: torch.onnx cannot write the network: no room; try --format pt2\n"
    assert told.endswith(cause)
    assert not list(tmp_path.iterdir())


def read_export(run, file, words):
    """What a program makes of a file: its network, and its texts."""
    if "pt2" in words:
        texts = dict.fromkeys(("classes", "mean", "std", "resize", "crop"), "")
        return torch.export.load(file, extra_files=texts).module(), texts
    if "safetensors" in words:
        network = run.build(**({"similarity": None} if "--fold" in words else {})).eval()
        network.load_state_dict(load_file(file))
        with safe_open(file, "pt") as opened:
            return network, opened.metadata()
    runtime = onnxruntime.InferenceSession(file)
    texts = runtime.get_modelmeta().custom_metadata_map
    return lambda x: torch.from_numpy(runtime.run(None, {"images": x.numpy()})[0]), texts


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param((), "onnxruntime agrees with torch on 32 test images", marks=LONG),
        pytest.param(("--format", "pt2"), "torch.export.load agrees with torch on 32", marks=LONG),
        (("--format", "safetensors"), "read into a new network (as the run has it): max"),
        (("--format", "safetensors", "--fold"), "read into a new network (similarity=None): max"),
    ],
)
def test_what_evaluate_scores_is_what_the_file_answers(run, export, nsim, tmp_path, words, told):
    """In float32, image by image, after a training in bf16."""
    file = tmp_path / "network"
    lines = export(*words, "--out", file).out
    assert told in lines
    assert f"{file}: " in lines
    scores = json.loads(nsim(f"evaluate {run.path} --device cpu --json").out)["scores"]
    accuracy = f"{100 * scores['test_accuracy']:.2f} %"
    kind = words[1] if words else "onnx"
    assert lines.splitlines()[-1] == (
        f"{kind}: accuracy {accuracy}, the run's {accuracy}, on 32 test images; 100.00 % of the "
        "answers are equal"
    )
    network, texts = read_export(run, file, words)
    images = make_dataset().test
    answers = network(run.preprocess(images.pixels)).argmax(1)
    assert pack_correct(answers == images.labels) == scores["test_correct"]
    assert json.loads(texts["classes"]) == list(run.classes)
    assert json.loads(texts["mean"]) == list(run.preprocess.mean)
    assert json.loads(texts["std"]) == list(run.preprocess.std)
    assert (texts["resize"], texts["crop"]) == ("8", "8")


@pytest.mark.parametrize(("dataset", "side"), [("folder", 28), ("imagenet", 32)])
def test_the_facts_of_a_file_make_the_input_that_the_run_sees(run, tmp_path, dataset, side):
    file = tmp_path / "wide.png"
    pixels = torch.randint(256, (56, 112, 3), generator=torch.Generator().manual_seed(0))
    Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
    recipe = replace(run.recipe, dataset=dataset, crop=0)
    wide = {"channels": 3, "image_size": 28, "preprocess": Preprocess((0.5,) * 3, (0.25,) * 3)}
    facts = facts_of(other := replace(run, recipe=recipe, **wide))
    resize, crop, mean, std = (json.loads(facts[k]) for k in ("resize", "crop", "mean", "std"))
    assert resize == side
    steps = Resize(resize), CenterCrop(crop), ToTensor(), Normalize(mean, std)
    with Image.open(file) as image:
        wanted = Compose(steps)(image)
    found = other.preprocess(runs._read_image(file, other)[None])[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("words", "by_size", "free", "sizes"),
    [
        ((), False, True, [8, 10]),
        ((), True, False, [8]),
        (("--size", "free"), True, True, [8]),
        (("--size", "fixed"), False, False, [8]),
    ],
)
def test_the_size_is_free_where_padding_does_not_depend_on_it(
    export, tmp_path, monkeypatch, *, words, by_size, free, sizes
):
    tried = []
    monkeypatch.setattr(command, "pads_by_size", lambda _: by_size)
    monkeypatch.setattr(command, "trace_network", lambda *args: tried.append(args[2]))
    monkeypatch.setitem(command.WRITERS, "pt2", lambda *_: unanswered)
    monkeypatch.setattr(command, "compare_logits", lambda *_: (0.0, sizes))
    told = export("--format", "pt2", *words, "--out", tmp_path / "network.pt2")
    assert tried == [free]
    assert f"exporting for images of {'any size' if free else '8 pixels alone'}" in told.err
    assert ("the file takes images of 8 pixels alone" in told.out) == (sizes == [8])


def test_an_export_that_does_not_end_falls_back_to_one_size(export, tmp_path, monkeypatch):
    def trace(model, x, free):
        while free:
            with contextlib.suppress(Exception):  # As sympy and torch do.
                sum(range(1_000))
        return export_program(model, (x,))

    monkeypatch.setattr(command, "LIMIT", 0.2)
    monkeypatch.setattr(command, "trace_network", trace)
    monkeypatch.setitem(command.WRITERS, "pt2", lambda program, *_: program.module())
    monkeypatch.setattr(command, "compare_logits", lambda *_: (0.0, [8]))
    told = export("--format", "pt2", "--out", tmp_path / "network.pt2")
    assert "it is not done after 0.2 s; --size free would go on\n" in told.err
    assert "the file takes images of 8 pixels alone" in told.out
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.long
def test_networks_of_tensorflows_padding_are_exported_for_one_size():
    """With free sizes it takes 44 minutes."""
    timm = pytest.importorskip("timm")
    network = timm.create_model("tf_efficientnet_lite0", num_classes=3).eval()
    assert pads_by_size(network)
    assert not pads_by_size(timm.create_model("efficientnet_lite0", num_classes=3))
    x = torch.randn(4, 3, 64, 64)
    written = write_onnx(trace_network(network, x, free=False), io.BytesIO(), {})
    assert compare_logits(network, written, x, (1,))[1] == [64]


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


@pytest.mark.parametrize("between", [(), (Cast(torch.float64),)], ids=["next", "in another type"])
def test_zeros_around_a_maximum_stay_zeros(between):
    """As in timm's BiT; onnxruntime takes a Pad before MaxPool for its padding, which is -inf."""
    parts = nn.ZeroPad2d(1), *between, nn.MaxPool2d(3, 2), Cast(torch.float32), nn.Flatten()
    network = nn.Sequential(*parts).eval()
    x = -1 - torch.rand(2, 3, 7, 7)
    written = write_onnx(trace_network(network, x, free=False), io.BytesIO(), {})
    compare_logits(network, written, x, (1,))


@pytest.mark.slow
def test_int8_with_its_accuracy(run, export, tmp_path):
    pytest.importorskip("torchao")
    file = tmp_path / "network.onnx"
    told = export("--int8", "--out", file).out
    line = next(line for line in told.splitlines() if line.startswith("int8: accuracy "))
    eight, whole, same = (float(number) for number in re.findall(r"([\d.]+) %", line))
    assert same > 80
    x = run.preprocess(make_dataset().test.pixels)
    labels = make_dataset().test.labels
    before = (load(run)(x).argmax(1) == labels).double().mean().item()
    assert whole == pytest.approx(100 * before, abs=0.01)
    runtime = onnxruntime.InferenceSession(file)
    logits = torch.from_numpy(runtime.run(None, {"images": x.numpy()})[0])
    right = logits.argmax(1) == labels
    assert eight == pytest.approx(100 * right.double().mean().item(), abs=0.01)
    counts = [node.op_type for node in onnx.load(file).graph.node]
    assert counts.count("DequantizeLinear") > counts.count("Conv") > 18


@pytest.mark.slow
def test_a_dynamic_network_and_eight_bits_without_a_format_for_them(export, nsim, tmp_path):
    told = export("--format", "safetensors", "--int8", code=2).err
    assert "--int8 needs the format onnx or pt2" in told
    dynamic = session.train(TINY, out=tmp_path / "dynamic", device="cpu").path
    told = nsim(f"export {dynamic} --device cpu --format pt2").out
    assert "torch.export.load agrees with torch on 32 test images" in told


def test_int8_is_calibrated_on_training_images(run, export, tmp_path, monkeypatch):
    """Test images would make the accuracy that the command prints too good."""
    seen = []

    def calibrate(_model, _x, batches, _free):
        seen.extend(batches)
        raise RunError("enough")

    monkeypatch.setattr(command, "quantise_network", calibrate)
    monkeypatch.setattr(command, "BATCH", 20)
    monkeypatch.setattr(command, "CALIBRATION", 2)
    assert "enough" in export("--int8", "--out", tmp_path / "network.onnx", code=1).err
    images = make_dataset().train.pixels[:40]
    assert torch.equal(torch.cat(seen), run.preprocess(images))


NETWORK = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
X = torch.rand(8, 3, 8, 8)


@pytest.mark.parametrize("largest", [0.5, 1.0, 50.0])
def test_logits_may_differ_by_the_tolerance_of_the_largest_or_of_1(largest):
    def logits(x, more=0.0):
        return x.mean((2, 3)) + more

    allowed, x = 1e-3 * max(largest, 1), torch.full((8, 3, 8, 8), largest)
    compare_logits(logits, lambda x: logits(x, 0.9 * allowed), x, [1], 1e-3)
    with pytest.raises(RunError, match="logits differ from the run's by"):
        compare_logits(logits, lambda x: logits(x, 1.1 * allowed), x, [1], 1e-3)


def test_a_file_of_one_batch_or_size():
    def of_one(x, batch, side):
        if len(x) not in batch or x.shape[2] not in side:
            raise TypeError("fixed")
        return NETWORK(x)

    with pytest.raises(RunError, match="takes no other batch sizes: fixed"):
        compare_logits(NETWORK, lambda x: of_one(x, {1}, {8}), X, [1, 3])
    _, sizes = compare_logits(NETWORK, lambda x: of_one(x, {1, 3, 4}, {8}), X, [1, 3])
    assert sizes == [8]


def test_few_images_are_taken_again_where_batches_need_more():
    seen = []
    compare_logits(NETWORK, lambda x: (seen.append(len(x)), NETWORK(x))[1], X[:2], [1, 7])
    assert seen[:2] == [1, 7]


def test_a_larger_size_at_which_the_network_overflows_is_taken_and_not_compared():
    def network(x):
        return NETWORK(x) * (1.0 if x.shape[2] == 8 else float("inf"))

    assert compare_logits(network, network, X, [1, 3])[1] == [8, 10]


@pytest.mark.parametrize("wrong", [8, 10])
def test_the_largest_difference_of_both_sizes_is_told(wrong):
    def other(x):
        return NETWORK(x) + (1e-4 if x.shape[2] == wrong else 0)

    worst, sizes = compare_logits(NETWORK, other, X, [1, 3])
    assert sizes == [8, 10]
    assert worst == pytest.approx(1e-4, rel=1e-2)


def compared(other, network=NETWORK):
    compare_logits(network, other, X, [1, 3])


def times(number):
    return lambda x: NETWORK(x) * number


test_errors = refusals(
    (lambda: compared(lambda x: NETWORK(x) + 0.5), "logits differ from the run's by .*e-01"),
    (lambda: compared(times(float("nan"))), "logits differ from the run's by"),
    (lambda: compared(times(float("inf"))), "logits differ from the run's by"),
    (lambda: compared(lambda x: NETWORK(x)[:, :1]), r"shape \(8, 1\), the run's \(8, 4\)"),
    (lambda: compared(*[times(float("nan"))] * 2), "the run's logits are not all finite"),
    (lambda: compared(*[times(float("inf"))] * 2), "the run's logits are not all finite"),
    error=RunError,
)
