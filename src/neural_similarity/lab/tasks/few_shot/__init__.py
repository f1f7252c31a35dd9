"""Few-shot learning: every method adapts to the support set of a task and predicts its queries."""

from neural_similarity.lab.tasks.few_shot.episode import Episode as Episode
from neural_similarity.lab.tasks.few_shot.method import Method as Method
from neural_similarity.lab.tasks.few_shot.method import Predict as Predict
