"""A training that is killed, and the kill itself."""

import pytest

from neural_similarity.lab.train.journal import Journal


class Killed(BaseException):
    """Stands for a kill: nothing handles it."""


def killed_after(step, start):
    """Call `start` and kill it when `step` is done, before anything is saved for that step."""

    def stepped(_journal, done):
        if done == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "stepped", stepped)
        with pytest.raises(Killed):
            start()
