"""Section 5 of the paper as experiments: numbers as JSON, and a picture of each."""

from neural_similarity_paper.theory.experiment import EXPERIMENTS as EXPERIMENTS
from neural_similarity_paper.theory.experiment import run_experiment as run_experiment
