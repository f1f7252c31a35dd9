"""The commands `nsim table`, `reproduce`, `record` and `theory`."""

import tomllib
from pathlib import Path

HELP: dict[str, str] = tomllib.loads(Path(__file__).with_name("help.toml").read_text("utf-8"))
"""What pages of help say above the options, by command."""
