"""`nsim bench inference`: CNN-9 plain, static, folded and dynamic."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from torch import Tensor, nn

from benchmarks import oracle
from benchmarks.case import DTYPES
from benchmarks.comparison import Comparison, by_threads, forward
from benchmarks.costs import macs, peak_bytes
from benchmarks.networks import CHECKED, PLAIN, Setting
from benchmarks.report import Row
from benchmarks.subject import Placed, Subject
from benchmarks.timing import Effort, Timing
from neural_similarity.conversion import fold

FORWARD, FOLDED = "forward", "folded"


def inference(
    setting: Setting, similarities: Sequence[str], counts: Sequence[int], effort: Effort
) -> list[Row]:
    """CNN-9's forward pass in evaluation mode: plain, with similarities, static ones folded too."""
    subjects = list(_subjects(setting, similarities))
    images = setting.images(setting.batch)

    def whole(subject: Subject) -> Subject:
        return replace(subject, inputs=(images,))

    def costs(subject: Subject, times: Mapping[str, Timing]) -> dict[str, float | None]:
        return {
            "images_per_second": setting.batch / times[FORWARD].seconds,
            "peak_bytes": peak_bytes(forward(whole(subject)), images.device),
            "macs": macs(subject.module, [images]) / setting.batch,
        }

    comparison = Comparison(
        group=setting.group,
        subjects=subjects,
        grad=setting.check_grad,
        dtype=DTYPES[setting.runtime.precision],
        timed={FORWARD: lambda subject: forward(whole(subject))},
        costs=costs,
    )
    return by_threads(comparison, counts, effort)


def _subjects(setting: Setting, similarities: Sequence[str]) -> Iterator[Subject]:
    plain = setting.network(None)
    yield _subject(PLAIN, plain, plain, setting)
    for name in similarities:
        network = setting.network(name)
        yield _subject(name, network, network, setting)
        if name.startswith("static"):
            yield _subject(f"{name}, {FOLDED}", fold(network), network, setting)


def _subject(name: str, network: nn.Module, original: nn.Module, setting: Setting) -> Subject:
    """A network whose scores must be those of `original`."""
    twin = deepcopy(original).to(setting.runtime.device).double().eval().requires_grad_(False)

    def expected(_: nn.Module, x: Tensor) -> Tensor:
        return oracle.network(twin, x)

    return Subject(
        name=name,
        module=Placed(network, setting.runtime).eval().requires_grad_(False),
        inputs=(setting.images(CHECKED),),
        oracle=expected,
    )
