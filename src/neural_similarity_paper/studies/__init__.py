"""Studies of our own: where M helps to adapt a network, and whether it helps one to the end."""

import tomllib
from pathlib import Path

STUDY_ENTRIES = tomllib.loads(Path(__file__).with_name("studies.toml").read_text("utf-8"))
"""What each study compares, by its name: texts, ways, columns; see `studies.toml`."""
