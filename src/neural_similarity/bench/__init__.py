"""Benchmarks: time and memory beside other formulations and other operators, checked first.

Every subject is compared with its oracle in float64 before it is timed, at the operands that it is
timed with, and has no time if it is wrong. Times are taken by turns and told as ratios to a
baseline in the same round. `nsim bench` runs all of it; docs/performance.md is written from what
it saved.

`subject` is what is measured, `subjects` and `networks` are those there are; `oracle` and
`checking` tell what is right; `timing`, `costs` and `quiet` measure; `comparison` does all of this
for subjects side by side, and `operators`, `training`, `loops`, `inference` and `few_shot` say for
which; `report`, `markdown`, `plots`, `current` and `performance` show what was found.
"""

from neural_similarity.bench.case import Case as Case
from neural_similarity.bench.current import current as current
from neural_similarity.bench.few_shot import FewShotCase as FewShotCase
from neural_similarity.bench.few_shot import kept_features as kept_features
from neural_similarity.bench.few_shot import meta_gradients as meta_gradients
from neural_similarity.bench.inference import inference as inference
from neural_similarity.bench.loops import training_loops as training_loops
from neural_similarity.bench.markdown import to_markdown as to_markdown
from neural_similarity.bench.networks import Setting as Setting
from neural_similarity.bench.operators import operators as operators
from neural_similarity.bench.operators import scaling as scaling
from neural_similarity.bench.performance import page as page
from neural_similarity.bench.plots import draw_growth as draw_growth
from neural_similarity.bench.plots import draw_ratios as draw_ratios
from neural_similarity.bench.quiet import Watch as Watch
from neural_similarity.bench.report import Report as Report
from neural_similarity.bench.report import Row as Row
from neural_similarity.bench.report import grouped as grouped
from neural_similarity.bench.report import read as read
from neural_similarity.bench.report import write as write
from neural_similarity.bench.timing import Effort as Effort
from neural_similarity.bench.training import training_steps as training_steps
