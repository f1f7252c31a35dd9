"""Studies of adaptation by an older protocol, whose sheets are shown below those of the new one.

Nothing else depends on them: once the new cells have run, this module goes with its sheets.
"""

from neural_similarity_paper.studies.adapt_continual import CONTINUAL, TASK_CELL, task_bytes
from neural_similarity_paper.studies.adapt_map import MAP, MAP_CELLS
from neural_similarity_paper.studies.adapt_study import Study
from neural_similarity_paper.studies.adapt_unlabelled import STREAM, STREAM_CELLS
from neural_similarity_paper.studies.reading import study_fields

ONE_SHEET = {"file": "runs", "rates_file": "runs"}
OLDER_MAP = Study(**study_fields("older-map"), cells=MAP_CELLS)
OLDER_RATES = Study(**study_fields("older-rates"), cells=MAP_CELLS)
OLDER_CONTINUAL = Study(
    **study_fields("older-continual"),
    cells=(TASK_CELL._replace(**ONE_SHEET),),
    size=("bytes a task", lambda way, n: task_bytes(way, n, way.endswith("statistics"))),
    positions=CONTINUAL.positions,
)
OLDER_STREAM = Study(
    **study_fields("older-stream"), cells=tuple(cell._replace(**ONE_SHEET) for cell in STREAM_CELLS)
)
OLDER = {
    MAP.name: (OLDER_MAP, OLDER_RATES),
    CONTINUAL.name: (OLDER_CONTINUAL,),
    STREAM.name: (OLDER_STREAM,),
}
