"""Changed images: laws of noise, blur and rotation, and that a data set is always the same."""

import pytest
import torch

from neural_similarity.lab.data import Dataset, Images
from neural_similarity_paper.corruption import (
    CHANGED_AT_ONCE,
    CORRUPTIONS,
    add_noise,
    blur_images,
    corrupt_dataset,
    rotate_images,
)

RANDOM = torch.Generator().manual_seed(0)


def images(count, side=32):
    pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=RANDOM)
    return Images(pixels, torch.arange(count) % 2, ("a", "b"))


def test_noise_has_its_deviation():
    x = torch.full((50, 3, 32, 32), 128.0)
    change = add_noise(x, RANDOM, 25) - x
    assert abs(change.mean()) < 0.5
    assert abs(change.std() - 25) < 0.5


def test_blur_widens_a_point_by_its_variance():
    x = torch.zeros(1, 2, 33, 35)
    x[0, 1, 16, 20] = 1
    y = blur_images(x, RANDOM, 2)[0]
    assert not y[0].any()
    torch.testing.assert_close(y[1].sum(), torch.tensor(1.0))
    for axis, centre in ((0, 16), (1, 20)):
        places = torch.arange(y.shape[1 + axis]) - centre
        mass = y[1].sum(1 - axis)
        assert abs((mass * places).sum()) < 1e-5
        assert (mass * places**2).sum() == pytest.approx(4, rel=0.03)  # 1 % lies outside
    ones = torch.ones(1, 1, 9, 9)
    torch.testing.assert_close(blur_images(ones, RANDOM, 1), ones)


def test_rotation_is_continuous_at_right_angles_and_leaves_the_centre():
    x = images(2, 9).pixels.float()
    assert torch.equal(rotate_images(x, RANDOM, 90), x.rot90(1, (2, 3)))
    turned = rotate_images(x, RANDOM, 90 + 1e-4)
    torch.testing.assert_close(turned, x.rot90(1, (2, 3)), rtol=0, atol=0.02)
    torch.testing.assert_close(rotate_images(x, RANDOM, 30)[..., 4, 4], x[..., 4, 4])
    assert not rotate_images(x, RANDOM, 45)[..., 0, 0].any()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_changed_data_set_is_the_same_every_time(name):
    dataset = Dataset("cifar10", images(CHANGED_AT_ONCE + 3), images(4))
    once, again = corrupt_dataset(dataset, name), corrupt_dataset(dataset, name)
    assert once.name == f"cifar10-{name}"
    assert once.digest == again.digest
    assert (once.digest == dataset.digest) == (name == "rotation-90-undone")
    assert torch.equal(once.train.labels, dataset.train.labels)
    assert once.train.pixels.shape == dataset.train.pixels.shape
    few = Dataset("cifar10", dataset.train, dataset.train.subset(range(4)))
    same = torch.equal(corrupt_dataset(few, name).test.pixels, once.train.pixels[:4])
    assert same is ("noise" not in name)  # the parts have their own noise
