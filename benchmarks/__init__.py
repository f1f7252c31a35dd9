"""Benchmarks: time and memory beside other formulations and other operators, checked first.

Every subject is compared with its oracle in float64 before it is timed, at the operands that it is
timed with, and has no time if it is wrong. Times are taken by turns and told as ratios to a
baseline in the same round. `python -m benchmarks` runs all of it; docs/performance.md is written
from what it saved.

`subject` is what is measured, `subjects` and `networks` are those there are; `oracle` and
`checking` tell what is right; `timing`, `costs` and `quiet` measure; `comparison` does all of this
for subjects side by side, and `operators`, `training`, `loops`, `inference` and `few_shot` say for
which; `report`, `markdown`, `plots`, `current` and `performance` show what was found.
"""

from benchmarks.case import Case as Case
from benchmarks.current import current as current
from benchmarks.few_shot import FewShotCase as FewShotCase
from benchmarks.few_shot import kept_features as kept_features
from benchmarks.few_shot import meta_gradients as meta_gradients
from benchmarks.inference import inference as inference
from benchmarks.loops import training_loops as training_loops
from benchmarks.markdown import to_markdown as to_markdown
from benchmarks.networks import Setting as Setting
from benchmarks.operators import operators as operators
from benchmarks.operators import scaling as scaling
from benchmarks.performance import page as page
from benchmarks.plots import draw_growth as draw_growth
from benchmarks.plots import draw_ratios as draw_ratios
from benchmarks.quiet import Watch as Watch
from benchmarks.report import Report as Report
from benchmarks.report import Row as Row
from benchmarks.report import grouped as grouped
from benchmarks.report import read as read
from benchmarks.report import write as write
from benchmarks.timing import Effort as Effort
from benchmarks.training import training_steps as training_steps
