"""The paper's tables from run records, and the runs that they lack."""

from neural_similarity.paper.display import show as show
from neural_similarity.paper.execution import Outcome as Outcome
from neural_similarity.paper.execution import execute as execute
from neural_similarity.paper.few_shot_records import EVALUATIONS as EVALUATIONS
from neural_similarity.paper.few_shot_records import Evaluation as Evaluation
from neural_similarity.paper.few_shot_records import make_evaluation as make_evaluation
from neural_similarity.paper.few_shot_records import record_few_shot as record_few_shot
from neural_similarity.paper.few_shot_records import write_evaluation as write_evaluation
from neural_similarity.paper.few_shot_table import few_shot_markdown as few_shot_markdown
from neural_similarity.paper.markdown import to_markdown as to_markdown
from neural_similarity.paper.picture import draw as draw
from neural_similarity.paper.plan import Plan as Plan
from neural_similarity.paper.plan import Task as Task
from neural_similarity.paper.plan import chosen as chosen
from neural_similarity.paper.plan import make_plan as make_plan
from neural_similarity.paper.plan import makespan as makespan
from neural_similarity.paper.recording import write_record as write_record
from neural_similarity.paper.records import Record as Record
from neural_similarity.paper.records import read_records as read_records
from neural_similarity.paper.report import StepCosts as StepCosts
from neural_similarity.paper.report import fullest_budget as fullest_budget
from neural_similarity.paper.report import make_report as make_report
from neural_similarity.paper.tables import TABLES as TABLES
from neural_similarity.paper.tables import Table as Table
from neural_similarity.paper.tables import in_variant as in_variant
