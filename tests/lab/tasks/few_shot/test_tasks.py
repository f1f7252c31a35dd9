from dataclasses import replace
from functools import partial

import torch
from refusals import refusals
from tiny_classes import make_images

from neural_similarity.lab.data import Images
from neural_similarity.lab.tasks.few_shot.tasks import Sampler, TaskSizes, draw_tasks

SIZES = TaskSizes(ways=3, shots=2, queries=4)
IMAGES = make_images(0, 5)


def draw(count=20, seed=0, sizes=SIZES, images=IMAGES):
    return draw_tasks(images, sizes, count, seed=seed, data="d" * 64, part="test")


def test_tasks_are_of_different_images_of_their_classes():
    tasks, said = draw(), []
    for support, query in zip(tasks.draw.support, tasks.draw.query, strict=True):
        assert len({*support.tolist(), *query.tolist()}) == 3 * (2 + 4)
        named, asked = IMAGES.labels[support], IMAGES.labels[query]
        classes = named[::2]
        assert len(set(classes.tolist())) == 3
        said.append(classes)
        assert torch.equal(named, classes[SIZES.support_labels])
        assert torch.equal(asked, classes[SIZES.query_labels])
    assert torch.equal(tasks.draw.classes, torch.stack(said))


def test_every_class_and_image_comes_in_turn():
    tasks = draw(400)
    assert len(tasks.image_positions()) == len(IMAGES)
    shares = torch.bincount(IMAGES.labels[tasks.draw.support.flatten()]).double()
    fifths = torch.full((5,), 0.2).double()
    torch.testing.assert_close(shares / shares.sum(), fifths, atol=0.03, rtol=0)


def test_a_list_is_a_function_of_its_seed():
    assert draw().digest == draw().digest
    assert draw().digest != draw(seed=1).digest
    longer = draw(30)
    assert torch.equal(longer.draw.query[:20], draw().draw.query)


def test_the_numbers_of_version_1_stay():
    """Lists of one version must be drawn alike for ever: else raise the version."""
    tasks = draw(2)
    assert tasks.draw.support.tolist() == [[47, 44, 9, 11, 24, 34], [0, 3, 13, 18, 48, 58]]


def test_images_are_not_needed_in_order():
    mixed = make_images(0, 5)
    order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(0))
    shuffled = Images(mixed.pixels[order], mixed.labels[order], mixed.classes)
    tasks = draw(5, images=shuffled)
    assert len(set(shuffled.labels[tasks.draw.support[0]].tolist())) == 3


def test_the_digest_is_of_everything_in_the_list():
    """Also as many images of each kind, called otherwise, or one query exchanged."""
    tasks = draw()
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


TASKS = draw()
LAST = int(max(TASKS.draw.support.max(), TASKS.draw.query.max()))
FEWER = IMAGES.subset([*(IMAGES.labels != 3).nonzero().flatten().tolist(), 36, 37])
test_errors = refusals(
    *(
        (
            partial(TASKS.check_data, data, part, IMAGES),
            "`tasks` must be of the data at hand, .* made",
        )
        for data, part in (("e" * 64, "test"), ("d" * 64, "val"))
    ),
    *(
        (partial(TASKS.check_data, "d" * 64, "test", others), "be drawn from the images of test")
        for others in (IMAGES.subset(range(LAST)), IMAGES.subset(range(len(IMAGES))[::-1]))
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
    (lambda: draw(1), "`count` must be at least 2 tasks"),
    *(
        (partial(TaskSizes, **{name: least - 1}), f"`{name}` must be at least {least}, got")
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1))
    ),
)
