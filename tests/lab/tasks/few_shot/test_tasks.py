import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refusals
from tiny_classes import make_images

from neural_similarity.lab.data import Images
from neural_similarity.lab.tasks.few_shot.tasks import (
    Draw,
    Sampler,
    TaskSizes,
    draw_tasks,
    read_tasks,
    to_json,
    write_tasks,
)

SIZES = TaskSizes(ways=3, shots=2, queries=4)
IMAGES = make_images(0, 5)


@pytest.fixture
def images():
    return IMAGES


def draw(images, count=20, seed=0, sizes=SIZES):
    return draw_tasks(images, sizes, count, seed=seed, data="d" * 64, part="test")


def test_tasks_are_of_different_images_of_their_classes(images):
    tasks, said = draw(images), []
    for support, query in zip(tasks.draw.support, tasks.draw.query, strict=True):
        assert len({*support.tolist(), *query.tolist()}) == 3 * (2 + 4)
        named, asked = images.labels[support], images.labels[query]
        classes = named[::2]
        assert len(set(classes.tolist())) == 3
        said.append(classes)
        assert torch.equal(named, classes[SIZES.support_labels])
        assert torch.equal(asked, classes[SIZES.query_labels])
    assert torch.equal(tasks.draw.classes, torch.stack(said))


def test_every_class_and_image_comes_in_turn(images):
    tasks = draw(images, 400)
    assert len(tasks.image_positions()) == len(images)
    shares = torch.bincount(images.labels[tasks.draw.support.flatten()]).double()
    fifths = torch.full((5,), 0.2).double()
    torch.testing.assert_close(shares / shares.sum(), fifths, atol=0.03, rtol=0)


def test_a_list_is_a_function_of_its_seed(images):
    assert draw(images).digest == draw(images).digest
    assert draw(images).digest != draw(images, seed=1).digest
    longer = draw(images, 30)
    assert torch.equal(longer.draw.query[:20], draw(images).draw.query)


def test_the_numbers_of_version_1_stay(images):
    """Lists of one version must be drawn alike for ever: else raise the version."""
    tasks = draw(images, 2)
    assert tasks.draw.support.tolist() == [[47, 44, 9, 11, 24, 34], [0, 3, 13, 18, 48, 58]]


def test_lists_survive_files(images, tmp_path):
    tasks, path = draw(images), tmp_path / "tasks.json"
    write_tasks(path, tasks)
    again = read_tasks(path)
    assert again.digest == tasks.digest
    assert torch.equal(again.draw.support, tasks.draw.support)
    assert torch.equal(again.draw.classes, tasks.draw.classes)
    assert (again.sizes, again.seed, again.part) == (SIZES, 0, "test")
    again.check_data("d" * 64, "test", images)


@pytest.mark.parametrize("fault", ["two in a way", "a class twice", "an image twice", "another"])
def test_what_is_no_task_is_refused(images, fault):
    """Three ways of two shots and four queries; the fault is in the second task alone."""
    tasks = draw(images)
    names = ("classes", "support", "query")
    classes, support, query = (getattr(tasks.draw, n).clone() for n in names)
    if fault == "two in a way":
        query[1, [0, 4]] = query[1, [4, 0]]
    elif fault == "a class twice":
        (members,) = (images.labels == images.labels[support[1, 0]]).nonzero(as_tuple=True)
        known = {*support[1, :2].tolist(), *query[1, :4].tolist()}
        new = torch.tensor([m for m in members.tolist() if m not in known])[:6]
        support[1, 2:4], query[1, 4:8] = new[:2], new[2:]
        classes[1, 1] = classes[1, 0]
    elif fault == "another":
        classes[1, 0] = min({*range(5)} - {*classes[1].tolist()})
    else:
        query[1, 0] = support[1, 0]
    wrong = replace(tasks, draw=Draw(classes, support, query))
    with pytest.raises(ValueError, match=r"`tasks` must list the classes .* but task 1"):
        wrong.check_data("d" * 64, "test", images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "`version` must be 2, got 1"),
        ({"classes": [[0, 1, 2]]}, "must be of"),
        ({"classes": None}, "dtype"),
        ({"support": "AAAA"}, "decompressing"),
        ({"tasks": 3}, "reshape"),
        ({"seed": "a"}, "`seed` must be an integer, got 'a'"),
        ({"seed": True}, "`seed` must be an integer, got True"),
    ],
)
def test_damaged_lists(images, tmp_path, change, message):
    content = json.loads(json.dumps(to_json(draw(images)))) | change
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"tasks.json cannot be read as a list.*{message}"):
        read_tasks(path)


def test_images_are_not_needed_in_order():
    mixed = make_images(0, 5)
    order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(0))
    shuffled = Images(mixed.pixels[order], mixed.labels[order], mixed.classes)
    tasks = draw(shuffled, 5)
    assert len(set(shuffled.labels[tasks.draw.support[0]].tolist())) == 3


def test_the_digest_is_of_everything_in_the_list(images):
    """Also as many images of each kind, called otherwise, or one query exchanged."""
    tasks = draw(images)
    query = tasks.draw.query.clone()
    query[0, 0] += 1
    more = replace(tasks.draw, classes=tasks.draw.classes.repeat(1, 2))
    changes = [
        {"data": "e" * 64},
        {"part": "val"},
        {"seed": 1},
        {"sizes": TaskSizes(ways=6, shots=1, queries=2), "draw": more},
        {"draw": replace(tasks.draw, query=query)},
        {"draw": replace(tasks.draw, support=tasks.draw.support.flip(0))},
    ]
    assert len({tasks.digest, *(replace(tasks, **change).digest for change in changes)}) == 7


def test_the_last_image_must_be_there(images):
    tasks = draw(images, 2)
    last = int(max(tasks.draw.support.max(), tasks.draw.query.max()))
    tasks.check_data("d" * 64, "test", images.subset(range(last + 1)))
    with pytest.raises(ValueError, match=f"`tasks` must name images below {last}, got {last}"):
        tasks.check_data("d" * 64, "test", images.subset(range(last)))


TASKS = draw(IMAGES)
PARTS = ("classes", "support", "query")
FEWER = IMAGES.subset([*(IMAGES.labels != 3).nonzero().flatten().tolist(), 36, 37])
SMALL = draw(IMAGES, 3, sizes=TaskSizes(ways=2, shots=1, queries=2))
test_errors = refusals(
    (
        lambda: replace(TASKS, draw=Draw(*(getattr(TASKS.draw, part)[:1] for part in PARTS))),
        "`draw` must hold at least 2 tasks, .* got 1",
    ),
    (
        lambda: replace(SMALL, sizes=TaskSizes(ways=2, shots=2, queries=2)),
        r"`draw` must be of \(tasks, 2\) classes .*4\) and",
    ),
    *(
        (partial(TASKS.check_data, data, part, IMAGES, "x.json"), r"x\.json must be of the data at")
        for data, part in (("e" * 64, "test"), ("d" * 64, "val"))
    ),
    (
        lambda: TASKS.check_data("d" * 64, "test", IMAGES.subset(range(9))),
        "`tasks` must name images below 9",
    ),
    (
        lambda: Sampler(IMAGES, TaskSizes(ways=6, shots=1, queries=1)),
        "at most the number of classes, got 6",
    ),
    (
        lambda: Sampler(IMAGES, TaskSizes(ways=2, shots=5, queries=8)),
        r"5 \+ 8 images .*, got 12 .* 'c0'",
    ),
    (lambda: Sampler(FEWER, SIZES), "got 2 of the class 'c3'"),
    (lambda: draw(IMAGES, 1), "`count` must be at least 2 tasks"),
    *(
        (partial(TaskSizes, **{name: least - 1}), f"`{name}` must be at least {least}, got")
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1))
    ),
)
