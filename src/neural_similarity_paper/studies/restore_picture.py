"""Before and after: images of a camera, by the network as it is and by adapted ones.

    python -m neural_similarity_paper.studies.restore_picture --cell mini-imagenet-24-4-turned-35

Networks are adapted again, at the rates that the cell's sheet chose, with the pairs of its first
draw.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neural_similarity.lab.cli.parsing import parse_options
from neural_similarity.lab.train.plots import write_picture
from neural_similarity.lab.train.runtime import cpu_threads
from neural_similarity_paper.studies.adapt_study import Study
from neural_similarity_paper.studies.restore import INPUT, RESTORE, restore_images, score_images
from neural_similarity_paper.studies.trials import read_sheet

SHOWN, IMAGES = (INPUT, "nothing", "m", "adafm", "all"), 3
"""Ways, and how many of the test images."""


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """Options of the command."""

    cell: str
    """A cell of adapt-restore, such as mini-imagenet-24-4-turned-35."""
    out: Path = Path("deblurring.png")
    """The file that is written, a PNG."""
    data: Path = Path("data")
    """Folder of the data sets."""
    results: Path = Path("results")
    """Folder of the run records."""


def draw_restored(study: Study, options: PictureOptions, shown: Sequence[str] = SHOWN) -> None:
    """Draw a row for each image, by each way with its ratio in dB, and sharp.

    Raises:
        ValueError: there is no such cell, or its rates are not chosen yet.
    """
    from matplotlib.figure import Figure

    cells = {cell.name: cell for cell in study.cells}
    if (cell := cells.get(options.cell)) is None:
        raise ValueError(f"`cell` must be one of {study.name}, got {options.cell!r}")
    path = study.sheet_path(options.results, cell.rates_file)
    try:
        rates = study.choose_rates(cell, shown, read_sheet(path, study.measure.fields).score)
    except KeyError as error:
        raise ValueError(f"{path} must have the rates of {cell.name}, lacks {error}") from None
    trials = study.trials(cell, shown, rates)
    runs = [restore_images(trials[cell.draws[0], w, 0][0], options.data, False)[:2] for w in shown]
    labels, sharp = [study.ways[way].label for way in shown], runs[0][1].sharp
    columns = [*zip(labels, (restored for restored, _ in runs), strict=True), ("sharp", sharp)]
    figure = Figure(figsize=(2.4 * len(columns), 2.6 * IMAGES), layout="constrained")
    panels = figure.subplots(IMAGES, len(columns), squeeze=False)
    for at, (label, images) in enumerate(columns):
        shown_images = images[:IMAGES], score_images(images, sharp)[:IMAGES]
        for panel, image, ratio in zip(panels[:, at], *shown_images, strict=True):
            panel.imshow(image[0].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
            panel.set_title(label if ratio.isinf() else f"{label}, {ratio:.1f} dB", fontsize=8)
            panel.set_axis_off()
    write_picture(figure, options.out)


if __name__ == "__main__":
    with cpu_threads(1):
        draw_restored(
            RESTORE,
            parse_options(
                PictureOptions, sys.argv[1:], prog="restore_picture", description=str(__doc__)
            ),
        )
