"""The recipes of the paper's tables and of our studies; `nsim recipes` lists them in a clone.

`recipes.toml` beside this module has all but the adaptations, which are in `adaptation.toml`.
"""

from pathlib import Path

from neural_similarity_paper.recipes.adaptation import ADAPTATION
from neural_similarity_paper.recipes.reading import read_families

FAMILIES, STARTS = read_families(Path(__file__).with_name("recipes.toml"))
FAMILIES |= ADAPTATION
