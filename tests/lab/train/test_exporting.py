"""A file of a network that computes something else is told."""

import pytest
import torch
from refusals import refusals
from torch import nn

from neural_similarity.lab.errors import RunError
from neural_similarity.lab.train.exporting import compare_logits

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
