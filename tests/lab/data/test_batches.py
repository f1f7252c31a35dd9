"""Images, parts of them, and the batches that are made of them."""

import dataclasses
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from refusals import refusals
from torch.testing import assert_close

from neural_similarity.lab.data import (
    Augment,
    Batches,
    Dataset,
    Images,
    Place,
    Preprocess,
    hold_out,
    load_dataset,
)
from neural_similarity.lab.data.transforms import Windows

COUNT, HEIGHT, WIDTH = 11, 5, 7


def images(channels=3, count=COUNT, classes=None, seed=0):
    """Image i has the label i, so a batch says which images it shows, or that of the classes."""
    random = torch.Generator().manual_seed(seed)
    shape = count, channels, HEIGHT, WIDTH
    pixels = torch.randint(1, 256, shape, dtype=torch.uint8, generator=random)
    labels = torch.arange(count) % (classes or max(count, 1))
    return Images(pixels, labels, tuple(map(str, range(classes or count))))


def batches(whole=None, size=4, **options):
    whole = whole or images()
    raw = Preprocess.raw_values(whole.pixels.shape[1])
    return Batches(whole, size, **{"preprocess": raw, **options})


def sliced(image, augment, top, left, flip):
    """The oracle: mirror, pad and cut one image (c, h, w)."""
    image = image.numpy()[:, :, ::-1] if flip else image.numpy()
    around = ((0, 0), (augment.crop, augment.crop), (augment.crop, augment.crop))
    mode = "constant" if augment.padding == "zero" else augment.padding
    padded = np.pad(image, around, mode=mode)
    return torch.from_numpy(padded[:, top : top + HEIGHT, left : left + WIDTH].copy())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", ["zero", "symmetric", "reflect"])
@pytest.mark.parametrize("crop", [0, 2, 4])
def test_every_window_is_a_slice(crop, padding, flip, channels):
    augment, whole = Augment(crop, flip, padding), images(channels)
    windows = Windows(whole.pixels, augment, "cpu")
    shifts = range(2 * crop + 1)
    every = list(itertools.product(range(COUNT), shifts, shifts, range(1 + flip)))
    actual = windows.take_windows(windows.corner_of(*torch.tensor(every).unbind(1)))
    expected = [sliced(whole.pixels[i], augment, *place) for i, *place in every]
    assert torch.equal(actual, torch.stack(expected))


@pytest.mark.long
@pytest.mark.parametrize("padding", ["zero", "symmetric"])
def test_batches_draw_every_crop_and_flip(padding):
    augment, whole = Augment(1, True, padding), images(count=2)
    places = list(itertools.product(range(3), range(3), range(2)))
    counts = dict.fromkeys(itertools.product(range(2), places), 0)
    stream = batches(whole, 2, augment=augment)
    for step in range(360):
        for x, y in zip(*stream.at(step), strict=True):
            image = whole.pixels[int(y)]
            (place,) = (p for p in places if torch.equal(x.byte(), sliced(image, augment, *p)))
            counts[int(y), place] += 1
    # 20 expected each; a count below 4 or above 40 has a probability under 1e-4 for all together.
    assert 4 <= min(counts.values()) <= max(counts.values()) <= 40


def test_alternating_flips_show_every_image_mirrored_in_every_other_epoch():
    whole = images()
    stream = batches(whole, COUNT, augment=Augment(crop=0, flips="alternate"))
    epochs = []
    for step in range(6):
        x, y = stream.at(step)
        sides = {
            (int(i), torch.equal(v.byte(), whole.pixels[i].flip(-1)))
            for v, i in zip(x, y, strict=True)
        }
        epochs.append(sides)
    assert epochs[0] == epochs[2] == epochs[4]
    assert epochs[1] == epochs[3] == epochs[5] == {(image, not side) for image, side in epochs[0]}
    assert {side for _, side in epochs[0]} == {False, True}


@pytest.mark.parametrize("augment", [None, Augment(crop=0, flip=False)])
def test_without_augmentation_images_come_as_they_are(augment):
    whole = images()
    for step in range(6):
        x, y = batches(whole, augment=augment).at(step)
        assert torch.equal(x, whole.pixels[y].float())


def test_inputs_are_preprocessed_and_labels_stay_integers():
    whole = images()
    preprocess = Preprocess.fit_to_images(whole)
    x, y = batches(whole, preprocess=preprocess).at(0)
    assert torch.equal(x, preprocess(whole.pixels[y]))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_an_epoch_shows_no_image_twice_and_drops_the_incomplete_batch():
    stream = batches(size=4)
    assert stream._order.steps_per_epoch == 2
    epochs = [torch.cat([stream.at(2 * e + s)[1] for s in range(2)]).tolist() for e in range(30)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 30
    assert set(itertools.chain(*epochs)) == set(range(COUNT))


def test_a_batch_is_a_function_of_seed_and_step():
    torch.manual_seed(1)
    straight, jumping = batches(augment=Augment(), seed=7), batches(augment=Augment(), seed=7)
    expected = [straight.at(step) for step in range(9)]
    torch.manual_seed(2)
    for step in (8, 0, 5, 5, 1, 7):
        for actual, right in zip(jumping.at(step), expected[step], strict=True):
            assert torch.equal(actual, right)


def test_seeds_give_other_orders_and_other_crops():
    one, other = batches(seed=0, size=COUNT), batches(seed=1, size=COUNT)
    assert one.at(0)[1].tolist() != other.at(0)[1].tolist()
    single = images(count=1)
    crops = [batches(single, 1, seed=s, augment=Augment()).at(0)[0].flatten() for s in range(20)]
    assert len({tuple(crop.tolist()) for crop in crops}) > 10


def test_memory_format_changes_no_value():
    places = Place(), Place(memory_format=torch.contiguous_format)
    last, first = (batches(augment=Augment(), place=place).at(3)[0] for place in places)
    assert torch.equal(last, first)
    assert first.shape == (4, 3, HEIGHT, WIDTH)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("padding", ["zero", "symmetric"])
def test_a_gpu_makes_the_same_batches(padding):
    preprocess = Preprocess.fit_to_images(images())
    options = {"augment": Augment(padding=padding), "preprocess": preprocess}
    here, there = batches(**options), batches(**options, place=Place(device="cuda"))
    for step in range(5):
        x, y = there.at(step)
        assert x.is_cuda
        assert y.is_cuda
        torch.testing.assert_close(x.cpu(), here.at(step)[0])
        assert torch.equal(y.cpu(), here.at(step)[1])


def test_sets_that_are_padded_part_by_part_are_whole(monkeypatch):
    monkeypatch.setattr("neural_similarity.lab.data.transforms.PADDED_AT_ONCE", 4)
    pixels = images().pixels
    windows = Windows(pixels, Augment(2), "cpu")
    middle = torch.full((COUNT,), 2)
    for flip in (0, 1):
        corners = windows.corner_of(torch.arange(COUNT), middle, middle, torch.full((COUNT,), flip))
        assert torch.equal(windows.take_windows(corners), pixels.flip(3) if flip else pixels)


def test_images_of_a_batch_and_batches_of_an_epoch_have_windows_of_their_own():
    """Copies of one image differ in their windows alone."""
    found = images()
    copies = Images(found.pixels[:1].repeat(40, 1, 1, 1), torch.zeros(40).long(), ("one",))

    def shown(step, augment):
        return [x.numpy().tobytes() for x in batches(copies, 20, augment=augment).at(step)[0]]

    cropped = Augment(2, flip=False)
    assert len(set(shown(0, cropped))) > 5
    assert shown(0, cropped) != shown(1, cropped)
    assert len(set(shown(0, Augment(0)))) == 2


def pixels(channels=3, count=5):
    return images(channels, count).pixels


def labelled(values):
    return Images(values, torch.zeros(len(values), dtype=torch.int64), ("only",))


def test_standardises_every_channel():
    preprocess = Preprocess((0.1, 0.5, 0.9), (0.2, 0.3, 1.5))
    actual = preprocess(pixels())
    for c, (mean, std) in enumerate(zip(preprocess.mean, preprocess.std, strict=True)):
        expected = (pixels()[:, c].double() / 255 - mean) / std
        assert_close(actual[:, c].double(), expected, rtol=0, atol=4e-6)
    assert actual.dtype == torch.float32
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(Preprocess.raw_values(1)(values), values.float())


def test_fit_gives_mean_zero_and_deviation_one():
    values = pixels(count=50)
    values[:, 1] //= 3
    preprocess = Preprocess.fit_to_images(labelled(values))
    expected = values.double().transpose(0, 1).flatten(1) / 255
    assert_close(torch.tensor(preprocess.mean).double(), expected.mean(1), rtol=0, atol=1e-6)
    assert preprocess.std == pytest.approx(expected.std(1, correction=0).tolist(), abs=1e-12)
    standardised = preprocess(values).double()
    assert_close(standardised.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-6)
    assert_close(standardised.std((0, 2, 3), correction=0), torch.ones(3).double())


def test_inputs_by_the_numbers_of_imagenet():
    images = labelled(torch.zeros(1, 3, 2, 2).byte())
    told = Preprocess.for_images(images, "imagenet")
    x = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    wanted = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(told(x).flatten(), torch.tensor(wanted))


def test_balanced_batches_have_all_classes_equally_often():
    """90 images of one class and 10 of another; any step is the same whatever came before."""
    whole = images(count=100)
    rare = dataclasses.replace(whole, labels=(torch.arange(100) >= 90).long(), classes=("a", "b"))
    found = batches(rare, 20, balanced=True)
    drawn = [found.at(step) for step in range(200)]
    share = torch.cat([labels for _, labels in drawn]).double().mean()
    assert abs(share - 0.5) < 4 * (0.25 / 4_000) ** 0.5  # Four deviations of 4,000 coins.
    pixels, labels = batches(rare, 20, balanced=True).at(137)
    assert torch.equal(pixels, drawn[137][0])
    assert torch.equal(labels, drawn[137][1])
    different = {tuple(image.flatten().tolist()) for x, _ in drawn for image in x}
    assert len(different) == 100


def constant_channel():
    values = pixels()
    values[:, 2] = 7
    return values


test_errors = refusals(
    (lambda: Augment(crop=-4), "`crop` must be an integer of at least 0, got -4"),
    (lambda: Augment(padding="edge"), "`padding` must be one of zero, .*, got 'edge'"),
    (lambda: Augment(flips="never"), "`flips` must be one of random, .*, got 'never'"),
    (lambda: batches(augment=Augment(crop=5)), "`crop` must be smaller than .* 5x7 .*, got 5"),
    (lambda: batches(augment=Augment(crop=100)), "`crop` must be smaller than .*, got 100"),
    (lambda: batches().at(-1), "`step` must not be negative, got -1"),
    (lambda: batches(size=0), f"a batch of 0 from {COUNT} images"),
    (lambda: batches(size=COUNT + 1), f"a batch of {COUNT + 1} from {COUNT} images"),
    (lambda: batches(preprocess=Preprocess.raw_values(1)), r"int32 tensor \(n, 1, h, w\), got"),
    *(
        (partial(Preprocess.raw_values(3), wrong), r"a uint8 or int32 tensor \(n, 3, h, w\), got")
        for wrong in (pixels(1), pixels().float(), pixels()[0])
    ),
    *(
        (partial(Preprocess, mean, std), "`mean` and `std` must hold one number per channel")
        for mean, std in (((0, 0), (1,)), ((0,), (0,)), ((0,), (float("nan"),)))
    ),
    *(
        (partial(Preprocess.fit_to_images, labelled(wrong)), f"in every channel, got {words}")
        for wrong, words in (
            (constant_channel(), "5 images .* channel 2"),
            (pixels(count=0), "0 images"),
        )
    ),
    (
        lambda: Preprocess.for_images(load_dataset("embedded").test, "Raw"),
        "`inputs` must be one of .*, got 'Raw'",
    ),
)


labelled_images = partial(images, 1, 40, 4)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change", ["pixel", "label", "class", "shape"])
def test_digest_is_of_all_the_content_and_not_of_the_name(part, change):
    before = Dataset("", labelled_images(seed=1), labelled_images(seed=2))
    same = Dataset("another name", labelled_images(seed=1), labelled_images(seed=2))
    assert same.digest == before.digest
    assert len(bytes.fromhex(same.digest)) == 32
    old = getattr(before, part)
    pixels, labels, classes = old.pixels.clone(), old.labels.clone(), old.classes
    if change == "pixel":
        pixels[-1, 0, 1, 2] ^= 1
    if change == "label":
        labels[5] = (labels[5] + 1) % 4
    if change == "class":
        classes = ("0", "1", "2", "other")
    if change == "shape":
        pixels = pixels.reshape(40, 1, WIDTH, HEIGHT)
    parts = {"train": before.train, "test": before.test, part: Images(pixels, labels, classes)}
    assert Dataset("", **parts).digest != before.digest


@pytest.mark.parametrize(("count", "shares"), [(0, [0] * 4), (8, [2] * 4), (10, [3, 3, 2, 2])])
def test_every_class_gives_the_same_share_and_both_parts_keep_the_order(count, shares):
    pixels = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1)
    whole = Images(pixels, torch.arange(40) % 4, tuple("abcd"))
    held = hold_out(whole, count, seed=3)
    assert held[1].labels.bincount(minlength=4).tolist() == shares
    train, validation = (part.pixels.flatten().tolist() for part in held)
    assert sorted(train + validation) == list(range(40))
    assert train == sorted(train)
    assert validation == sorted(validation)
    torch.rand(1)
    assert torch.equal(hold_out(whole, count, seed=3)[1].pixels, held[1].pixels)
    other = hold_out(whole, count, seed=6)[1].pixels
    assert torch.equal(other, held[1].pixels) == (count == 0)


def test_a_subset_keeps_the_order_that_is_asked_for_or_is_named_by_a_mask():
    images = load_dataset("embedded").test
    part = images.subset([7, 3, 3])
    for name in ("pixels", "labels"):
        assert torch.equal(getattr(part, name), getattr(images, name)[[7, 3, 3]])
    assert part.classes == images.classes
    chosen = images.subset(images.labels == 9)
    assert chosen.labels.unique().tolist() == [9]
    assert len(chosen) == int((images.labels == 9).sum())
    for wrong in ([0.9, 1.9], torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="`indices` must be integers, or a mask of 2000"):
            images.subset(wrong)


BYTES, ZEROS = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
test_bad_images = refusals(
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
    (labelled_images(), 40, "more than 10 images of the class '0' to hold 10 of them"),
    (labelled_images(), 40, "`validation` must leave every class .* got 40: `images`"),
    (labelled_images(), -1, "`validation` must not be negative, got -1"),
    (
        labelled_images().subset([0, 1, 2, 4, 5, 6]),
        4,
        r"more than 1 images of the class '3' .* got 0",
    ),
    call=lambda images, count: hold_out(images, count, seed=0),
)
