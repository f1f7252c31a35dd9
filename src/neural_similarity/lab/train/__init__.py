"""Training: one loop, its recipes, run folders and checkpoints."""

from neural_similarity.lab.errors import Interrupted as Interrupted
from neural_similarity.lab.errors import RunError as RunError
from neural_similarity.lab.train.recipe import Recipe as Recipe
from neural_similarity.lab.train.run import Run as Run
from neural_similarity.lab.train.run import read_run as read_run
from neural_similarity.lab.train.runtime import Runtime as Runtime
from neural_similarity.lab.train.runtime import choose_runtime as choose_runtime
from neural_similarity.lab.train.scoring import Scores as Scores
from neural_similarity.lab.train.scoring import evaluate as evaluate
from neural_similarity.lab.train.scoring import pack_correct as pack_correct
from neural_similarity.lab.train.scoring import predict as predict
from neural_similarity.lab.train.scoring import score as score
from neural_similarity.lab.train.scoring import unpack_correct as unpack_correct
from neural_similarity.lab.train.task import Task as Task
