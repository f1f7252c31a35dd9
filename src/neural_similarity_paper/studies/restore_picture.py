"""Before and after: images of a camera, by the network as it is and by adapted ones.

    python -m neural_similarity_paper.studies.restore_picture --cell mini-imagenet-24-4-turned-35

Networks are adapted again, at the rates that the cell's sheet chose, with the pairs of its first
draw.
"""

from pathlib import Path

import tyro

from neural_similarity.lab.train.plots import write_picture
from neural_similarity.lab.train.runtime import cpu_threads
from neural_similarity_paper.studies.restore import INPUT, RESTORE, restore_images, score_images
from neural_similarity_paper.studies.trials import read_sheet

SHOWN, IMAGES = (INPUT, "nothing", "m", "adafm", "all"), 3
"""Ways, and how many of the test images."""


def draw_restored(
    *,
    cell: str,
    out: Path = Path("deblurring.png"),
    data: Path = Path("data"),
    results: Path = Path("results"),
) -> None:
    """Draw a row for each image, by each way with its ratio in dB, and sharp.

    Args:
        cell: A cell of adapt-restore, such as mini-imagenet-24-4-turned-35.
        out: The file that is written, a PNG.
        data: Folder of the data sets.
        results: Folder of the run records.

    Raises:
        ValueError: there is no such cell, or its rates are not chosen yet.
    """
    from matplotlib.figure import Figure

    cells = {each.name: each for each in RESTORE.cells}
    if (place := cells.get(cell)) is None:
        raise ValueError(f"`cell` must be one of {RESTORE.name}, got {cell!r}")
    path = RESTORE.sheet_path(results, place.rates_file)
    try:
        rates = RESTORE.choose_rates(place, SHOWN, read_sheet(path, RESTORE.measure.fields).score)
    except KeyError as error:
        raise ValueError(f"{path} must have the rates of {cell}, lacks {error}") from None
    trials = RESTORE.trials(place, SHOWN, rates)
    runs = [restore_images(trials[place.draws[0], way, 0][0], data, False)[:2] for way in SHOWN]
    labels, sharp = [RESTORE.ways[way].label for way in SHOWN], runs[0][1].sharp
    columns = [*zip(labels, (restored for restored, _ in runs), strict=True), ("sharp", sharp)]
    figure = Figure(figsize=(2.4 * len(columns), 2.6 * IMAGES), layout="constrained")
    panels = figure.subplots(IMAGES, len(columns), squeeze=False)
    for at, (label, images) in enumerate(columns):
        shown_images = images[:IMAGES], score_images(images, sharp)[:IMAGES]
        for panel, image, ratio in zip(panels[:, at], *shown_images, strict=True):
            panel.imshow(image[0].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
            panel.set_title(label if ratio.isinf() else f"{label}, {ratio:.1f} dB", fontsize=8)
            panel.set_axis_off()
    write_picture(figure, out)


if __name__ == "__main__":
    with cpu_threads(1):
        tyro.cli(draw_restored, prog="restore_picture")
