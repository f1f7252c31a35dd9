"""Training: one loop, its recipes, run folders and checkpoints."""

from neural_similarity.lab.errors import Interrupted as Interrupted
from neural_similarity.lab.errors import RunError as RunError
from neural_similarity.lab.plugins import load_entries as _load_entries
from neural_similarity.lab.train.files import pack_correct as pack_correct
from neural_similarity.lab.train.files import unpack_correct as unpack_correct
from neural_similarity.lab.train.recipe import Recipe as Recipe
from neural_similarity.lab.train.recipe import TrainingRecipe as TrainingRecipe
from neural_similarity.lab.train.run import Run as Run
from neural_similarity.lab.train.run import read_run as read_run
from neural_similarity.lab.train.runtime import Runtime as Runtime
from neural_similarity.lab.train.runtime import choose_runtime as choose_runtime
from neural_similarity.lab.train.scoring import Scores as Scores
from neural_similarity.lab.train.scoring import evaluate_model as evaluate_model
from neural_similarity.lab.train.scoring import predict_logits as predict_logits
from neural_similarity.lab.train.scoring import score_logits as score_logits
from neural_similarity.lab.train.task import Task as Task

_load_entries("networks")
