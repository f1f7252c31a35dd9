import dataclasses
import json

import pytest
import torch
from torch.testing import assert_close

from neural_similarity.lab.data import Images, Preprocess, load_dataset


def pixels(channels=3, count=5):
    random = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, channels, 4, 6), dtype=torch.uint8, generator=random)


def labelled(values):
    return Images(values, torch.zeros(len(values), dtype=torch.int64), ("only",))


def test_standardises_every_channel():
    preprocess = Preprocess((0.1, 0.5, 0.9), (0.2, 0.3, 1.5))
    actual = preprocess(pixels())
    for c, (mean, std) in enumerate(zip(preprocess.mean, preprocess.std, strict=True)):
        expected = (pixels()[:, c].double() / 255 - mean) / std
        assert_close(actual[:, c].double(), expected, rtol=0, atol=4e-6)
    assert actual.dtype == torch.float32


def test_raw_leaves_every_value_exactly():
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 2, 16, 16)
    assert torch.equal(Preprocess.raw_values(2)(values), values.float())


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


def test_survives_json():
    preprocess = Preprocess.fit_to_images(labelled(pixels()))
    restored = Preprocess(**json.loads(json.dumps(dataclasses.asdict(preprocess))))
    assert restored == preprocess
    assert hash(restored) == hash(preprocess)


def test_keeps_the_memory_format():
    preprocess = Preprocess.raw_values(3)
    assert preprocess(pixels()).is_contiguous()
    last = pixels().contiguous(memory_format=torch.channels_last)
    assert preprocess(last).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(preprocess(last), preprocess(pixels()))


def test_no_images_are_no_error():
    assert Preprocess.raw_values(3)(pixels(count=0)).shape == (0, 3, 4, 6)


@pytest.mark.parametrize("wrong", [pixels(1), pixels().float(), pixels()[0]])
def test_refuses_other_inputs(wrong):
    with pytest.raises(ValueError, match=r"`pixels` must be a uint8 tensor \(n, 3, h, w\), got"):
        Preprocess.raw_values(3)(wrong)


@pytest.mark.parametrize(("mean", "std"), [((0, 0), (1,)), ((0,), (0,)), ((0,), (float("nan"),))])
def test_refuses_other_numbers(mean, std):
    with pytest.raises(ValueError, match="`mean` and `std` must hold one number per channel"):
        Preprocess(mean, std)


def test_fit_refuses_a_constant_channel_and_no_images():
    values = pixels()
    values[:, 2] = 7
    for wrong, found in ((values, "5 images .* channel 2"), (pixels(count=0), "0 images")):
        with pytest.raises(ValueError, match=f"must vary in every channel, got {found}"):
            Preprocess.fit_to_images(labelled(wrong))


def test_inputs_by_the_numbers_of_imagenet():
    images = labelled(torch.zeros(1, 3, 2, 2).byte())
    told = Preprocess.for_images(images, "imagenet")
    x = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    wanted = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(told(x).flatten(), torch.tensor(wanted))


def test_misspelt_inputs_are_refused():
    with pytest.raises(ValueError, match=r"`inputs` must be one of .*, got 'Raw'"):
        Preprocess.for_images(load_dataset("embedded").test, "Raw")
