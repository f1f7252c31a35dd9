"""Pictures of M show the numbers that the layers use."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from moved import moved
from PIL import Image
from torch import nn
from torch.testing import assert_close

import neural_similarity as ns
from neural_similarity import visualize
from neural_similarity.lab.train.journal import draw_learning_curves


def network(similarity):
    layers = [ns.Conv2d(3, 4, 3, padding=1, similarity=similarity), nn.ReLU()]
    layers.append(ns.Conv2d(4, 4, (3, 1), stride=2, similarity=similarity))
    return moved(nn.Sequential(*layers), std=1)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_matrices_are_those_that_fold_or_their_mean(kind):
    x, model = torch.randn(2, 3, 7, 8), network(f"static-{kind}")
    found, layer = visualize.similarities(model, x), model[2]
    assert list(found) == ["0", "2"]
    weight = layer.weight.flatten(2) @ visualize.mean_matrix(found["2"])
    assert_close(weight.view_as(layer.weight), layer.fuse().weight)
    model = network(f"dynamic-{kind}").train()
    found = visualize.similarities(model, x)
    assert_close(found["0"], model[0].similarity.matrix(x))
    mean = found["0"].mean((0, -2, -1))
    assert_close(visualize.mean_matrix(found["0"]), mean.diag() if kind == "diagonal" else mean)


@pytest.mark.long
@pytest.mark.parametrize("similarity", ["static-full", "dynamic-diagonal", "dynamic-full"])
def test_drawing_writes_one_picture_of_all_layers_and_maps_of_dynamic_ones(tmp_path, similarity):
    paths = visualize.draw(network(similarity), torch.randn(2, 3, 7, 8), tmp_path / "plots")
    names = ["similarities.png"]
    if similarity.startswith("dynamic"):
        names += ["maps-0.png", "maps-2.png"]
    assert [path.name for path in paths] == names
    for path in paths:
        with Image.open(path) as image:
            assert len(image.getcolors(1 << 24)) > 9


def test_a_plain_network_has_nothing_to_draw(tmp_path):
    assert visualize.draw(network(None), torch.randn(1, 3, 7, 8), tmp_path) == []


@pytest.mark.long
def test_kernel_shapes_are_drawn_and_blocks_averaged(tmp_path):
    model = network(ns.Dynamic(ns.Unshared(ns.Masked(ns.Full()), filters=2)))
    model[0].similarity.structure.inner.mask.data[4] = 0
    x = torch.randn(2, 3, 7, 8)
    shapes = visualize.kernel_shapes(model)
    assert shapes["0"].tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    assert shapes["2"].shape == (3, 1)
    found = visualize.similarities(model, x)
    assert_close(found["0"], model[0].similarity.matrix(x).mean(1))
    names = [path.name for path in visualize.draw(model, x, tmp_path)]
    assert names == ["similarities.png", "maps-0.png", "maps-2.png", "shapes.png"]


def test_maps_are_of_two_dimensions_with_or_without_a_batch():
    layer = ns.Conv2d(2, 2, 3, similarity="dynamic-full")
    found = visualize.similarities(nn.Sequential(layer), torch.randn(2, 5, 5))
    assert found["0"].shape == (1, 9, 9, 3, 3)
    for kind, size in ((ns.Conv1d, (7,)), (ns.Conv3d, (4, 4, 4))):
        network = nn.Sequential(kind(2, 2, 3, similarity="dynamic-diagonal"))
        assert visualize.similarities(network, torch.randn(1, 2, *size)) == {}


def test_layers_called_by_keyword_and_masks_of_other_layers():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = ns.Conv2d(3, 4, 3, similarity="dynamic-diagonal")

        def forward(self, x):
            return self.conv(input=x)

    x = torch.randn(2, 3, 5, 5)
    model = Named()
    assert_close(visualize.similarities(model, x)["conv"], model.conv.similarity.matrix(x))
    masked = ns.Static(ns.Masked(ns.Full()))
    shapes = visualize.kernel_shapes(nn.Sequential(ns.LSTM(5, 7, similarity=masked)))
    assert {name: len(shape) for name, shape in shapes.items()} == {"0.ih_l0": 5, "0.hh_l0": 7}


def test_pictures_show_m_minus_the_identity():
    m = torch.randn(1, 3, 3, 2, 2)
    eye = torch.eye(3)[..., None, None]
    drawn = visualize.plot_maps(torch.randn(1, 1, 4, 4), m).axes[1].images[0].get_array()
    torch.testing.assert_close(torch.tensor(drawn), (m[0] - eye).norm(dim=(0, 1)))
    static = torch.randn(3, 3)
    drawn = visualize.plot_matrices({"layer": static}).axes[0].images[0].get_array()
    torch.testing.assert_close(torch.tensor(drawn), static - torch.eye(3))


@pytest.mark.parametrize(("taps", "kernel", "places"), [(9, None, (3, 3)), (6, (3, 2), (3, 2))])
def test_maps_show_every_image_its_distance_and_every_tap_in_its_place(taps, kernel, places):
    x, m = torch.rand(2, 1, 4, 4), torch.randn(2, taps, 2, 5)
    figure = visualize.plot_maps(x, m, kernel=kernel)
    for number, (image, one) in enumerate(zip(x, m, strict=True)):
        panels = [axis.images[0] for axis in figure.axes[3 * number : 3 * number + 3]]
        shown = [torch.tensor(np.ma.filled(panel.get_array(), np.nan)) for panel in panels]
        assert_close(shown[0], (image[0] - image.min()) / (image.max() - image.min()))
        assert_close(shown[1], (one - 1).norm(dim=0))
        for tap, values in enumerate(one):
            row, column = divmod(tap, places[1])
            assert_close(shown[2][3 * row : 3 * row + 2, 6 * column : 6 * column + 5], values)
        assert shown[2].shape == (3 * places[0] - 1, 6 * places[1] - 1)
    scales = [axis.images[0].get_clim() for axis in figure.axes[1:6:3]]
    assert scales[0] == scales[1] == (0, pytest.approx((m - 1).norm(dim=1).max().item()))
    assert len(figure.axes) == 6 + 2  # and the bars of both scales


def test_taps_of_static_matrices_stand_in_their_places():
    full, diagonal = torch.randn(6, 6), torch.randn(6)
    found, kernels = {"full": full, "diagonal": diagonal}, {"full": (2, 3), "diagonal": (2, 3)}
    axes = visualize.plot_matrices(found, kernels=kernels).axes
    images = [axis.images[0].get_array() for axis in axes[:2]]
    first, second = (torch.tensor(np.ma.filled(image, np.nan)) for image in images)
    assert_close(second, (diagonal - 1).view(2, 3))
    for tap, row in enumerate(full - torch.eye(6)):
        top, left = 3 * (tap // 3), 4 * (tap % 3)
        assert_close(first[top : top + 2, left : left + 3], row.view(2, 3))


def test_learning_curves_have_held_out_points_and_the_test(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    records = [{"step": 5 * n, "loss": 1 / n, "accuracy": 0.1 * n} for n in range(1, 4)]
    records += [{"step": 10, "validation_loss": 0.7, "validation_accuracy": 0.2}]
    summary = {"steps": 15, "test_loss": 0.6, "test_accuracy": 0.25}
    draw_learning_curves(records, tmp_path / "curves.png", summary)
    draw_learning_curves(records[:1], tmp_path / "curves.png")
    assert all(axes.lines[0].get_marker() == "o" for axes in drawn[1].axes)
    for axes, held_out, test in zip(drawn[0].axes, (0.7, 0.2), (0.6, 0.25), strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines) == ["training batches", "held-out images", "test images"]
        assert lines["held-out images"].get_xydata().tolist() == [[10, held_out]]
        assert lines["test images"].get_xydata().tolist() == [[15, test]]
        assert all(line.get_marker() != "None" for line in axes.lines[1:])


def test_the_picture_of_a_kernel_shape_is_the_kernel_shape():
    shape = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    (axis,) = visualize.plot_shapes({"layer": shape}, columns=1).axes
    assert_close(torch.tensor(axis.images[0].get_array()), shape)
    assert axis.get_title() == "layer: 3 taps"


def test_what_is_no_batch_of_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`x` must be images .*, got \(3, 7, 8\)"):
        visualize.draw(network("static-full"), torch.randn(3, 7, 8), tmp_path)
    with pytest.raises(ValueError, match=r"`x` and `m` must be .*, got \(2, 3, 6, 6\) and \(3, 9"):
        visualize.plot_maps(torch.randn(2, 3, 6, 6), torch.randn(3, 9, 6, 6))


def test_a_matrix_over_channels_and_taps_is_drawn_as_it_is(tmp_path):
    model = network(ns.Static(ns.Unstructured()))
    assert visualize.similarities(model, torch.randn(1, 3, 7, 8))["0"].shape == (27, 27)
    (path,) = visualize.draw(model, torch.randn(1, 3, 7, 8), tmp_path)
    assert path.name == "similarities.png"
