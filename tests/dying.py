"""`nsim` on tiny images in a process of torchrun that dies when it comes to a place.

`torchrun tests/dying.py RANK:PLACE:HOW WORDS...`: HOW is kill, raise or exit.
"""

import os
import signal
import sys

import tiny_images

from neural_similarity.lab import cli, data
from neural_similarity.lab.errors import RunError
from neural_similarity.lab.tasks.classification import ClassificationTask
from neural_similarity.lab.train import checkpoint, fitting
from neural_similarity.lab.train.journal import Journal

CALLED = {"load": 1, "step": 3, "save": 2, "keep": 3, "judge": 2, "finish": 1}
"""Which call of a place is the last one."""
PLACES = {
    "load": (data, "load_dataset"),
    "step": (Journal, "show_step"),
    "save": (checkpoint, "save_weights"),
    "keep": (checkpoint, "remove_folder"),
    "judge": (Journal, "log_validation"),
    "finish": (ClassificationTask, "finish_run"),
}


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)
    raise RunError("this process alone fails")


def set_up(rank, place, how):
    """Let the process of a rank die at a place."""
    data.load_dataset = lambda *_, **__: tiny_images.make_dataset()
    fitting.draw_learning_curves = lambda *_: None
    if os.environ["RANK"] != rank:
        return
    owner, name = PLACES[place]
    real, calls = getattr(owner, name), []

    def deadly(*args, **options):
        calls.append(name)
        return die(how) if len(calls) == CALLED[place] else real(*args, **options)

    setattr(owner, name, deadly)


if __name__ == "__main__":
    set_up(*sys.argv[1].split(":"))
    sys.exit(cli.main(sys.argv[2:]))
