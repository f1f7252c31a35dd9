import pytest
import torch
from refusals import refusals

from neural_similarity.lab.data import Dataset, Images, hold_out, load_dataset


def images(count=40, classes=4, seed=0):
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 1, 2, 3), dtype=torch.uint8, generator=random)
    return Images(pixels, torch.arange(count) % classes, tuple("abcdefgh"[:classes]))


def test_subset_keeps_the_order_that_is_asked_for():
    whole = images()
    part = whole.subset([7, 3, 3])
    assert len(part) == 3
    assert part.labels.tolist() == [3, 3, 3]
    assert torch.equal(part.pixels[0], whole.pixels[7])
    assert torch.equal(part.pixels[2], whole.pixels[3])
    assert part.classes == whole.classes


def test_digest_is_that_of_the_content():
    first = Dataset("first", images(seed=1), images(seed=2))
    same = Dataset("another name", images(seed=1), images(seed=2))
    assert first.digest == same.digest
    assert len(bytes.fromhex(first.digest)) == 32


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change", ["pixel", "label", "class", "shape"])
def test_digest_changes_with_everything(part, change):
    before = Dataset("", images(seed=1), images(seed=2))
    old = getattr(before, part)
    pixels, labels, classes = old.pixels.clone(), old.labels.clone(), old.classes
    if change == "pixel":
        pixels[-1, 0, 1, 2] ^= 1
    if change == "label":
        labels[5] = (labels[5] + 1) % 4
    if change == "class":
        classes = ("a", "b", "c", "other")
    if change == "shape":
        pixels = pixels.reshape(40, 1, 3, 2)
    parts = {"train": before.train, "test": before.test, part: Images(pixels, labels, classes)}
    assert Dataset("", **parts).digest != before.digest


@pytest.mark.parametrize(("count", "shares"), [(0, [0] * 4), (8, [2] * 4), (10, [3, 3, 2, 2])])
def test_every_class_gives_the_same_share(count, shares):
    train, validation = hold_out(images(), count, seed=3)
    assert validation.labels.bincount(minlength=4).tolist() == shares
    assert len(train) == 40 - count


def test_held_out_images_are_missing_from_the_rest_and_both_keep_the_order():
    pixels = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1)
    whole = Images(pixels, torch.arange(40) % 4, tuple("abcd"))
    train, validation = (part.pixels.flatten().tolist() for part in hold_out(whole, 12, seed=0))
    assert sorted(train + validation) == list(range(40))
    assert train == sorted(train)
    assert validation == sorted(validation)


def test_held_out_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = hold_out(images(), 12, seed=5)[1]
    torch.manual_seed(2)
    assert torch.equal(hold_out(images(), 12, seed=5)[1].pixels, first.pixels)
    assert not torch.equal(hold_out(images(), 12, seed=6)[1].pixels, first.pixels)


def test_a_subset_is_named_by_a_mask_too():
    images = load_dataset("embedded").test
    chosen = images.subset(images.labels == 9)
    assert chosen.labels.unique().tolist() == [9]
    assert len(chosen) == int((images.labels == 9).sum())
    for wrong in ([0.9, 1.9], torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="`indices` must be integers, or a mask of 2000"):
            images.subset(wrong)


BYTES, ZEROS = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
test_errors = refusals(
    *(
        (pixels, ZEROS, "a", "`pixels` must be a contiguous uint8 or int32 tensor")
        for pixels in (BYTES.float(), BYTES[0], BYTES.expand(2, 3, 2, 2))
    ),
    *(
        (BYTES, labels, "a", r"`labels` must be an int64 tensor \(2,\), one per image")
        for labels in (torch.zeros(3).long(), ZEROS.int())
    ),
    *(
        (BYTES, torch.tensor(labels), "ab", r"`labels` must lie in 0\.\.1, one of 2 classes, got")
        for labels in ([0, 2], [-1, 0])
    ),
    call=lambda pixels, labels, classes: Images(pixels, labels, tuple(classes)),
)
test_every_class_keeps_an_image_and_validation_is_named = refusals(
    (images(), 40, "more than 10 images of the class 'a' to hold 10 of them"),
    (images(), 40, "`validation` must leave every class .* got 40: `images`"),
    (images(), -1, "`validation` must not be negative, got -1"),
    (images().subset([0, 1, 2, 4, 5, 6]), 4, r"more than 1 images of the class 'd' .* got 0"),
    call=lambda images, count: hold_out(images, count, seed=0),
)
