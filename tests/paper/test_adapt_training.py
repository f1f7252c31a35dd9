"""Runs of the studies of adaptation: what trains, at which rates, on which images."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_images import CLASSES, make_dataset, use_tiny_images
from torch import nn

import neural_similarity as ns
from neural_similarity.files import read_json
from neural_similarity.lab import session
from neural_similarity.lab.data.images import digest_of
from neural_similarity.lab.train import unpack_correct
from neural_similarity_paper.corruption import CORRUPTIONS
from neural_similarity_paper.studies import adapt_map, adapt_training, adapt_unlabelled, trials
from neural_similarity_paper.studies.adapt_map import MAP, map_cell, trial_recipe
from neural_similarity_paper.studies.adapt_training import MemoryRun
from neural_similarity_paper.studies.adapt_unlabelled import (
    KNOWN,
    KNOWN_CHANGES,
    STREAM,
    run_stream,
    score_known,
    stream_positions,
)
from neural_similarity_paper.studies.trials import (
    SearchPlace,
    Trial,
    cpu_runtime,
    open_sheet,
    read_sheet,
)

# What peft imports warns.
pytestmark = pytest.mark.filterwarnings("ignore")
CELL = map_cell("rotation-30", 2, (1, 2, 3))._replace(
    place=SearchPlace(("rotation-20",), (11,), (0.01,))
)


def coloured_dataset():
    """The tiny data set, grey in three channels, as its network takes it."""
    grey = make_dataset()
    train, test = (
        replace(part, pixels=part.pixels.repeat(1, 3, 1, 1)) for part in (grey.train, grey.test)
    )
    return replace(grey, train=train, test=test)


@pytest.fixture
def tiny_map(monkeypatch, tmp_path):
    """A network and images of which a run takes a second; four of a class give labels."""
    use_tiny_images(monkeypatch)
    torch.manual_seed(0)
    network = ns.models.resnet20(num_classes=len(CLASSES), width=0.25)
    torch.save(network.state_dict(), tmp_path / "net.pt")
    small = {"backbone": str(tmp_path / "net.pt"), "width": 0.25}
    short = {"steps": 2, "drops": (), "batch_size": 8}
    monkeypatch.setattr(adapt_map, "CHANGED", adapt_map.CHANGED | small | short)
    monkeypatch.setattr(adapt_training, "RESNET", small)
    for name, count in (("LABEL_HALF", 4), ("HELD_OUT", 2)):
        monkeypatch.setattr(adapt_training, name, count)
    for module in (adapt_training, adapt_unlabelled):
        monkeypatch.setattr(module, "load_dataset", lambda *_, **__: coloured_dataset())
    adapt_training.load_halves.cache_clear()
    yield tmp_path
    adapt_training.load_halves.cache_clear()


def images_of(part):
    return {image.numpy().tobytes() for image in part.pixels}


def test_no_image_that_is_scored_gives_labels_or_rates(tiny_map):
    """Labels, images held out for rates, and scored images are parts of the test images."""
    parts = [adapt_training.load_halves("cifar10-blur-1", tiny_map, h) for h in (False, True)]
    (labelled, scored), (fewer, held_out) = (
        (images_of(part.train), images_of(part.test)) for part in parts
    )
    assert labelled | scored == images_of(coloured_dataset().test)
    assert len(labelled) == len(scored) == 4 * len(CLASSES)
    assert (fewer | held_out, len(held_out)) == (labelled, 2 * len(CLASSES))
    assert not labelled & scored
    assert not fewer & held_out


def start(way, rates=(0.05,), **fields):
    """A way's run on the tiny images, before its first step."""
    recipe = replace(trial_recipe(Trial(way, rates, "rotation-30", 3), 2), **fields)
    return MemoryRun.start(recipe, coloured_dataset(), "")


@pytest.mark.parametrize("way", ["full", "full-default", "norm", "nothing"])
def test_a_run_is_that_of_nsim_train_adapt(tiny_map, passes, way):
    rate = 0.0 if way == "full-default" else 0.05
    recipe = trial_recipe(Trial(way, (rate,), "rotation-30", 3), 2)
    found = MemoryRun.start(recipe, coloured_dataset(), tiny_map).train((rate,))
    recipe = replace(recipe, lr=rate or (0.0 if way == "full-default" else 1.0))
    run = session.train(recipe, out=tiny_map / "run", data_root=tiny_map, device="cpu")
    summary = read_json(run.summary)
    assert found["correct"] == summary["test_correct"]
    assert found["score_precision"] == summary["score_precision"] == "fp32"
    assert (False, True) not in passes
    assert found["trained"] == summary["trained"]
    assert found["rates"] == ([] if way == "nothing" else [run.recipe.lr])
    assert found["finite"]
    assert found["scored"] == digest_of([coloured_dataset().test])
    if way == "full":
        assert not MemoryRun.start(recipe, coloured_dataset(), tiny_map).train((1e38,))["finite"]


GROUPS = {
    "full": [9 * 9 * 19],
    "norm": [344],
    "full-norm": [9 * 9 * 19, 344],
    "tsa": [1_856 + 16 * 16],
    "full-tsa": [9 * 9 * 19, 1_856 + 16 * 16],
    "atoms-9": [9 * 9 * 19],
    "full-all": [9 * 9 * 19, 17_224],
}


@pytest.mark.long
@pytest.mark.parametrize("way", MAP.ways)
def test_every_way_of_the_map_runs_at_both_rates(tiny_map, way):
    chosen = (0.003,) * len(MAP.ways[way].rates) or (1.0,)
    for name, own in ((way, chosen), (f"{way}-default", (0.0,))):
        trial = Trial(name, own, "rotation-30", 1)
        facts = adapt_map.run_map_trial(trial, tiny_map, True, 2, "backbone")
        assert facts["finite"]
        assert len(facts["rates"]) == len(MAP.ways[way].rates)
        assert bool(facts["trained"]) == bool(MAP.ways[way].rates)


@pytest.mark.usefixtures("tiny_map")
@pytest.mark.parametrize("way", GROUPS)
def test_groups_have_their_rates_and_nothing_else_moves(way):
    """A group at rate 0 stays; by curvature each has the rate that it has alone."""
    memory = start(way)
    network = memory.network
    parts = memory.parameter_parts
    assert [sum(p.numel() for p in part) for part in parts] == GROUPS[way]
    before = {name: t.clone() for name, t in network.state_dict().items()}
    rates = [*[0.0] * (len(parts) - 1), 0.05]
    memory.fit_parts(rates, range(2))
    moved = {n for n, p in network.named_parameters() if not torch.equal(p, before[n])}
    trained = {n for n, p in network.named_parameters() if any(p is own for own in parts[-1])}
    assert moved
    assert moved <= trained
    used = start(way).fit_parts((0.0,), range(1))
    assert all(rate > 0 for rate in used)
    if way == "full-norm":
        alone = [start(w).fit_parts((0.0,), range(1)) for w in ("full", "norm")]
        assert used == alone[0] + alone[1]


def test_then_all_trains_m_folds_it_and_trains_the_kernels(tiny_map, monkeypatch):
    networks, fit = [], MemoryRun.fit_parts

    def fit_parts(memory, rates, steps):
        networks.append((memory.network, [*steps], list(rates)))
        return fit(memory, rates, steps)

    monkeypatch.setattr(MemoryRun, "fit_parts", fit_parts)
    trial = Trial("full-then-all", (0.05, 0.01), "rotation-30", 1)
    facts = adapt_map.run_map_trial(trial, tiny_map, False, 2, "new")
    (first, *one), (second, *two) = networks
    assert (one, two, facts["rates"]) == ([[0], [0.05]], [[1], [0.01]], [0.05, 0.01])
    similar = [any("similarity" in n for n, _ in net.named_parameters()) for net in (first, second)]
    assert similar == [True, False]
    assert facts["trained"] == 9 * 9 * 19 + sum(p.numel() for p in second.parameters())


def test_cells_of_the_map_run_from_the_images_to_the_page(tiny_map, monkeypatch):
    monkeypatch.setattr(trials, "GRID", (0.01,))
    ways = {way: MAP.ways[way] for way in ("full", "norm", "full-norm", "statistics", "undone")}
    study = replace(MAP, ways=ways, stages=(tuple(ways),), cells=(CELL,))
    study.run(tiny_map, tiny_map, lambda _: None)
    (report,) = study.read(tiny_map)
    sheets = [
        read_sheet(study.sheet_path(tiny_map, CELL.file)),
        read_sheet(study.sheet_path(tiny_map, CELL.rates_file, report.facts)),
    ]
    assert [len(sheet.runs) for sheet in sheets] == [2 * 3 * 3 + 3 + 1, 2]
    scored = [{run["scored"] for run in sheet.runs.values()} for sheet in sheets]
    assert not scored[0] & scored[1]
    assert all(len(digests) == 1 for digests in scored)
    assert {"correct" in run for run in sheets[0].runs.values()} == {True}
    assert {len(s.facts["backbone"]) for s in sheets} == {64}


@pytest.mark.parametrize("better", ["new", "backbone"])
def test_labelled_images_choose_the_statistics_once(tiny_map, monkeypatch, better):
    """Of 8 labelled images of each draw, more are right by the better statistics."""
    asked = []

    def evaluate(network, images, *_):
        asked.append(images_of(images))
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        kept = not any(m.running_mean.any() for m in norms)  # Those of a new network are zero.
        correct = torch.arange(len(images)) < (5 if kept == (better == "backbone") else 4)
        return SimpleNamespace(correct=correct)

    monkeypatch.setattr(adapt_training, "evaluate_model", evaluate)
    sheet = open_sheet(tiny_map / "rotation-30-2.json", labels=2)
    adapt_map.choose_statistics(sheet, CELL, tiny_map)
    other = {"new": "backbone", "backbone": "new"}[better]
    assert sheet.facts["labelled_correct"] == {better: 3 * 5, other: 3 * 4}
    labelled = images_of(adapt_training.load_halves("cifar10-rotation-30", tiny_map, False).train)
    assert all(images < labelled and len(images) == 2 * len(CLASSES) for images in asked)
    again = read_sheet(sheet.path)
    adapt_map.choose_statistics(again, CELL, tiny_map)
    assert again.facts["statistics"] == better
    assert len(asked) == 6


def test_streams_by_class_have_the_same_images_class_by_class():
    labels = torch.arange(5).repeat(8)
    mixed, sorted_ = (stream_positions(labels, order, 1) for order in ("iid", "by-class"))
    assert sorted(mixed.tolist()) == sorted(sorted_.tolist()) == list(range(40))
    assert labels[sorted_].tolist() == sorted(labels.tolist())
    assert labels[mixed].tolist() != sorted(labels.tolist())


def started_networks(monkeypatch):
    """The runs that begin, as they come."""
    runs, begin = [], MemoryRun.start

    def keep(*given):
        runs.append(begin(*given))
        return runs[-1]

    monkeypatch.setattr(MemoryRun, "start", keep)
    return runs, begin


@pytest.mark.parametrize("way", STREAM.ways)
def test_a_stream_adapts_what_its_way_trains_and_answers_first(tiny_map, monkeypatch, passes, way):
    """The first batch has the answers of the pretrained network by the way's statistics."""
    runs, begin = started_networks(monkeypatch)
    trial = Trial(way, (0.05,) * len(STREAM.ways[way].rates) or (1.0,), "rotation-30/iid/8", 1)
    facts = run_stream(trial, tiny_map, False)
    found = unpack_correct(facts["correct"])
    assert facts["score_precision"] == "fp32"
    assert not any(autocast for _, autocast in passes)
    network, runtime = runs[0].network, cpu_runtime()
    whole = adapt_training.load_halves("cifar10-rotation-30", tiny_map, False)
    fresh = begin(runs[0].run.recipe, whole, tiny_map).network
    moved = {n for n, p in network.named_parameters() if not torch.equal(p, fresh.state_dict()[n])}
    for part, name in (("full", "similarity"), ("norm", "bn")):
        assert any(name in parameter for parameter in moved) == (part in way)
    assert all("similarity" in name or "bn" in name for name in moved)
    first = stream_positions(whole.test.labels, "iid", 1)[:8]
    images = runtime.place_images(runs[0].run.preprocess(whole.test.pixels[first]))
    with torch.no_grad():
        logits = fresh.train()(images)
        logits = fresh.eval()(images) if way.endswith("-running") else logits
    assert torch.equal(found[:8], logits.argmax(1) == whole.test.labels[first])


def test_m_from_the_geometry_turns_every_kernel_and_trains_nothing(tiny_map, monkeypatch):
    runs, _ = started_networks(monkeypatch)
    for way in KNOWN_CHANGES.ways:
        assert score_known(Trial(way, (1.0,), "rotation-90", 0), tiny_map)["trained"] == 0
    turned, back, plain = (memory.network for memory in runs)
    assert runs[1].run.recipe.dataset == "cifar10-rotation-90-undone"
    for name, kernel in ns.fold(turned).state_dict().items():
        if "conv" in name:
            assert torch.equal(kernel, plain.state_dict()[name].rot90(1, (2, 3)))
            assert torch.equal(back.state_dict()[name], plain.state_dict()[name])


def central_response(change, number, changed=True):
    """Of a 13x13 kernel that is moved by a number, over its sum, to a smooth image."""
    down, right = torch.meshgrid(*[torch.linspace(-1, 1, 65)] * 2, indexing="ij")
    x = (127 + 100 * torch.sin(8 * right + 2 * down))[None, None]
    taps = torch.arange(13.0) - 6
    layer = ns.Conv2d(1, 1, 13, bias=False, similarity=ns.Static(KNOWN[change][0]))
    with torch.no_grad():
        layer.weight.copy_(torch.exp(-((taps[:, None] - 1) ** 2) / 4 - (taps - 2) ** 2 / 8))
        next(p for n, p in layer.named_parameters() if "similarity" in n).fill_(number)
        kernel = ns.fold(nn.Sequential(layer))[0].weight
    x = CORRUPTIONS[change](x, torch.Generator()) if changed else x
    return ((x[..., 26:39, 26:39] * kernel).sum() / kernel.sum()).item()


@pytest.mark.parametrize("change", KNOWN)
def test_kernels_move_as_the_images_do(change):
    """Of two moves and none, only the right one answers the changed image as the image itself."""
    plain, number = central_response(change, 0.0, changed=False), KNOWN[change][1]
    right, opposite, none = (abs(central_response(change, n) - plain) for n in (number, -number, 0))
    assert 2 * right < min(opposite, none)
