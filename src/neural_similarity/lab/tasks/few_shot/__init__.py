"""Few-shot learning: the parts that a custom method, its training and its evaluation need."""

from neural_similarity.lab.data import load_split as load_split
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluation as Evaluation
from neural_similarity.lab.tasks.few_shot.evaluation import Evaluator as Evaluator
from neural_similarity.lab.tasks.few_shot.interface import Episode as Episode
from neural_similarity.lab.tasks.few_shot.interface import Method as Method
from neural_similarity.lab.tasks.few_shot.methods import METHODS as METHODS
from neural_similarity.lab.tasks.few_shot.methods import Kind as Kind
from neural_similarity.lab.tasks.few_shot.metric import Metric as Metric
from neural_similarity.lab.tasks.few_shot.metric import class_means as class_means
from neural_similarity.lab.tasks.few_shot.metric import cosine_matrix as cosine_matrix
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe as FewShotRecipe
from neural_similarity.lab.tasks.few_shot.run import FewShotRun as FewShotRun
from neural_similarity.lab.tasks.few_shot.tasks import TaskSizes as TaskSizes
from neural_similarity.lab.tasks.few_shot.tasks import draw_tasks as draw_tasks
