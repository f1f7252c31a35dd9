"""The paper's tables from run records, and the commands of the runs that they lack."""

from neural_similarity_paper.tables.costs import read_costs as read_costs
from neural_similarity_paper.tables.missing import Line as Line
from neural_similarity_paper.tables.missing import Scope as Scope
from neural_similarity_paper.tables.missing import missing_lines as missing_lines
from neural_similarity_paper.tables.missing import training_seconds as training_seconds
from neural_similarity_paper.tables.missing import wanted_records as wanted_records
from neural_similarity_paper.tables.pages import to_markdown as to_markdown
from neural_similarity_paper.tables.plots import draw_report as draw_report
from neural_similarity_paper.tables.records import read_records as read_records
from neural_similarity_paper.tables.records import write_records as write_records
from neural_similarity_paper.tables.report import make_report as make_report
from neural_similarity_paper.tables.rows import TABLES as TABLES
from neural_similarity_paper.tables.rows import Row as Row
from neural_similarity_paper.tables.running import run_lines as run_lines
