"""Saving and restoring the results of an interrupted evaluation."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_similarity.files import read_json, remove_file, write_json

SAVE_SECONDS = 10.0


class Partial:
    """A file of the results so far, and the results that it held when the evaluation began.

    Args:
        path: the file.
        of: identifies the evaluation; a file of another evaluation is ignored.

    Attributes:
        done: correct queries of the tasks that are done; int64.
        seconds: the seconds that these took.
    """

    def __init__(self, path: Path, of: dict[str, Any]):
        results = _held_results(path, of)
        self.done = torch.tensor(results["correct"], dtype=torch.int64)
        self.seconds: float = results["seconds"]
        self._path, self._of = path, of
        self._began = self._saved = time.monotonic()

    @property
    def spent_seconds(self) -> float:
        """Seconds of this evaluation until now, including those before interruptions."""
        return self.seconds + time.monotonic() - self._began

    def save_results(self, correct: Tensor) -> None:
        """Save the results, unless they were saved a few seconds ago."""
        if time.monotonic() - self._saved < SAVE_SECONDS:
            return
        fields = {"of": self._of, "seconds": self.spent_seconds, "correct": correct.tolist()}
        write_json(self._path, fields)
        self._saved = time.monotonic()

    def remove_file(self) -> None:
        remove_file(self._path)


def _held_results(path: Path, of: dict[str, Any]) -> dict[str, Any]:
    """The results in the file for this evaluation; none if it is missing or damaged."""
    try:
        content = read_json(path)
        if content["of"] == of:
            return {
                "correct": [int(i) for i in content["correct"]],
                "seconds": float(content["seconds"]),
            }
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"correct": [], "seconds": 0.0}
