"""Studies of adaptation by an older protocol, whose sheets are shown below those of the new one.

Nothing else depends on them: once the new cells have run, this module goes with its sheets.
"""

from collections.abc import Mapping

from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.studies.adapt_continual import (
    CONTINUAL,
    TASK_CELL,
    TASK_NOTE,
    task_bytes,
)
from neural_similarity_paper.studies.adapt_map import MAP, MAP_CELLS, MAP_WAYS, RATE_CHANGES
from neural_similarity_paper.studies.adapt_study import CURVED, Cell, Column, Study, Way
from neural_similarity_paper.studies.adapt_unlabelled import (
    STREAM,
    STREAM_CELLS,
    STREAM_NOTE,
    STREAM_WAYS,
)
from neural_similarity_paper.studies.rates import Trial


def _searched(*names: str) -> dict[str, Way]:
    """Ways with one rate, which is searched."""
    return {way: Way(WAYS[way][0], (way,)) for way in names}


_MAP_WAYS = _searched(
    *("full", "all", "norm", "residual", "residual-vector", "atoms", "lora", "lora-c", "lora-c4"),
    *("oft", "conv-adapter", "ssf", "film", "bias", "head"),
) | {way: MAP_WAYS[way] for way in ("statistics", "nothing", "undone")}
OLDER_MAP = Study(
    name=MAP.name,
    title="Older protocol: labels from the training images",
    note=(
        "Images that give labels are of the set that the backbone was trained on; all 10,000 test "
        "images are scored. Rates were chosen for each way and number of labels under "
        f"{', '.join(RATE_CHANGES)}, on training images held out; in the last columns M's is by "
        "curvature, on a run's labelled images, and those of other ways as before. A cell's "
        "networks normalise by running statistics of the new images or by the backbone's: by those "
        "with which the untrained network classifies more of the labelled images of all draws. "
        "SSF keeps the backbone's."
    ),
    ways=_MAP_WAYS,
    stages=(tuple(_MAP_WAYS),),
    cells=MAP_CELLS,
    columns=(Column(), Column("M by curvature", ("full",))),
)
CURVATURE, RATES_OF_M = "curvature", ("0.0003", "0.001", "0.003", "0.01", "0.03")
"""M's rate by curvature, and the others that cells tried."""


class _StudyOfRates(Study):
    """One way, static full M; what it compares are rates."""

    def _trials(
        self, cell: Cell, way: str, column: Column, rates: Mapping[str, float], draw: int
    ) -> list[Trial]:
        del column, rates
        name, rate = (f"full{CURVED}", 0.0) if way == CURVATURE else ("full", float(way))
        return [Trial(name, (rate,), cell.changes[0], draw)]


OLDER_RATES = _StudyOfRates(
    name=MAP.name,
    title="Older protocol: M by learning rate",
    note=(
        "Static full M at five rates, and at its rate by curvature, the default of `nsim train "
        "adapt` with a kept classifier. The best rate of a cell is known by its test images alone."
    ),
    ways={CURVATURE: Way("static full M, by curvature")}
    | {rate: Way(f"static full M, rate {rate}") for rate in RATES_OF_M},
    stages=((CURVATURE, *RATES_OF_M),),
    cells=MAP_CELLS,
)
_TASK_WAYS = _searched("full", "norm-statistics", "piggyback", "ssf", "residual", "head")
OLDER_CONTINUAL = Study(
    name=CONTINUAL.name,
    title="Older protocol: one rate for a way and its classifier",
    note=f"{TASK_NOTE}.",
    ways=_TASK_WAYS,
    stages=(tuple(_TASK_WAYS),),
    cells=(TASK_CELL._replace(file="runs", rates_file="runs"),),
    size=("bytes a task", lambda way, n: task_bytes(way, n, way.endswith("statistics"))),
    positions=CONTINUAL.positions,
)
OLDER_STREAM = Study(
    name=STREAM.name,
    title="Older protocol: rates on training images, statistics of the batch alone",
    note=STREAM_NOTE.format("training"),
    ways={way: STREAM_WAYS[way] for way in ("full", "norm", "statistics")},
    stages=(("full", "norm", "statistics"),),
    cells=tuple(cell._replace(file="runs", rates_file="runs") for cell in STREAM_CELLS),
)
OLDER = {
    MAP.name: (OLDER_MAP, OLDER_RATES),
    CONTINUAL.name: (OLDER_CONTINUAL,),
    STREAM.name: (OLDER_STREAM,),
}
