"""Few-shot learning: every method adapts to the support set of a task and predicts its queries."""

from neural_similarity.fewshot.episode import Episode as Episode
from neural_similarity.fewshot.method import Method as Method
from neural_similarity.fewshot.method import Predict as Predict
