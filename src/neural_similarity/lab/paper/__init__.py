"""The paper's tables from run records, and the runs that they lack."""

from neural_similarity.lab.paper.costs import StepCosts as StepCosts
from neural_similarity.lab.paper.costs import read_costs as read_costs
from neural_similarity.lab.paper.display import show as show
from neural_similarity.lab.paper.execution import Executor as Executor
from neural_similarity.lab.paper.execution import Outcome as Outcome
from neural_similarity.lab.paper.few_shot_table import few_shot_markdown as few_shot_markdown
from neural_similarity.lab.paper.markdown import to_markdown as to_markdown
from neural_similarity.lab.paper.plan import Job as Job
from neural_similarity.lab.paper.plan import Plan as Plan
from neural_similarity.lab.paper.plan import Scope as Scope
from neural_similarity.lab.paper.plan import chosen as chosen
from neural_similarity.lab.paper.plan import make_plan as make_plan
from neural_similarity.lab.paper.plan import makespan as makespan
from neural_similarity.lab.paper.plan import side_by_side as side_by_side
from neural_similarity.lab.paper.plan import sizes as sizes
from neural_similarity.lab.paper.plan import wanted_evaluations as wanted_evaluations
from neural_similarity.lab.paper.plan import wanted_runs as wanted_runs
from neural_similarity.lab.paper.plots import draw as draw
from neural_similarity.lab.paper.recording import write_records as write_records
from neural_similarity.lab.paper.records import read_records as read_records
from neural_similarity.lab.paper.report import fullest_budget as fullest_budget
from neural_similarity.lab.paper.report import make_report as make_report
from neural_similarity.lab.paper.tables import TABLES as TABLES
from neural_similarity.lab.paper.tables import Table as Table
from neural_similarity.lab.paper.tables import in_variant as in_variant
