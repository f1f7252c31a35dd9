"""The paper's tables from run records, and the commands of the runs that they lack."""

from neural_similarity.lab.paper.costs import StepCosts as StepCosts
from neural_similarity.lab.paper.costs import read_costs as read_costs
from neural_similarity.lab.paper.markdown import to_markdown as to_markdown
from neural_similarity.lab.paper.missing import Line as Line
from neural_similarity.lab.paper.missing import Scope as Scope
from neural_similarity.lab.paper.missing import Wanted as Wanted
from neural_similarity.lab.paper.missing import check_data as check_data
from neural_similarity.lab.paper.missing import missing_lines as missing_lines
from neural_similarity.lab.paper.missing import wanted_records as wanted_records
from neural_similarity.lab.paper.pace import training_seconds as training_seconds
from neural_similarity.lab.paper.plots import draw_report as draw_report
from neural_similarity.lab.paper.recording import write_records as write_records
from neural_similarity.lab.paper.records import read_records as read_records
from neural_similarity.lab.paper.report import make_report as make_report
from neural_similarity.lab.paper.report import report_rows as report_rows
from neural_similarity.lab.paper.rows import Row as Row
from neural_similarity.lab.paper.rows import Table as Table
from neural_similarity.lab.paper.running import LinesOutcome as LinesOutcome
from neural_similarity.lab.paper.running import run_lines as run_lines
from neural_similarity.lab.paper.tables import TABLES as TABLES
from neural_similarity.lab.paper.tables import table_in_variant as table_in_variant
