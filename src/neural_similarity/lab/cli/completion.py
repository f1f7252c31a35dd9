"""`nsim completion`: shell completion of `nsim`."""

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout

from neural_similarity.lab.cli import COMMANDS, main
from neural_similarity.lab.cli.commands import require, say
from neural_similarity.lab.cli.paper import FEW_SHOT
from neural_similarity.lab.cli.recipes import recipe_list
from neural_similarity.lab.paper.tables import TABLES

HELP = """usage: nsim completion bash|zsh

Print a script by which the shell completes commands, recipes, tables and options.

examples:
  nsim completion bash > ~/.local/share/bash-completion/completions/nsim
  nsim completion zsh >> ~/.zshrc"""
BASH = """\
_nsim() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    if [ "$COMP_CWORD" = 1 ]; then words="{commands}"
    else case ${{COMP_WORDS[1]}} in
{cases}
    esac; fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _nsim nsim
"""
SCRIPTS = {"bash": BASH, "zsh": "autoload -U +X bashcompinit && bashcompinit\n" + BASH}
KINDS = {"train": ("quickstart", "fewshot-quickstart", "adapt")}
"""Recipes of each kind, where options depend on it."""


def completion(args: Sequence[str]) -> int:
    """Print the script of a shell."""
    if not args or args[0] in ("-h", "--help"):
        say(HELP)
        return 0
    require("shell", args[0], SCRIPTS)
    cases = [f'    {name}) words="{" ".join(words(name))}" ;;' for name in COMMANDS]
    say(SCRIPTS[args[0]].format(commands=" ".join(COMMANDS), cases="\n".join(cases)).rstrip())
    return 0


def words(command: str) -> list[str]:
    """The words that can follow a command: names, and the options in its help."""
    families = recipe_list()[1].values()
    recipes = [row[0] for family in families for row in family["rows"]]
    tables = [*TABLES, *FEW_SHOT]
    names = {"train": recipes, "table": tables, "reproduce": tables}
    told = io.StringIO()
    with redirect_stdout(told):
        for kind in KINDS.get(command, ()):
            main([command, kind, "--help"])
        if command not in ("completion", *KINDS):
            main([command, "--help"])
    options = dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", told.getvalue()))
    return [*names.get(command, ()), *options]
