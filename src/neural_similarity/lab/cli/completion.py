"""`nsim completion`: shell completion of `nsim`."""

import re
from collections.abc import Sequence

from neural_similarity.lab.cli import COMMANDS
from neural_similarity.lab.cli.commands import print_line, require_known_name
from neural_similarity.lab.cli.help_pages import help_page
from neural_similarity.lab.cli.recipes import listed_families

HELP = """usage: nsim completion bash|zsh

Print a script by which the shell completes commands, recipes and options.

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


def completion(args: Sequence[str]) -> int:
    """Print the script of a shell."""
    if not args or args[0] in ("-h", "--help"):
        print_line(HELP)
        return 0
    require_known_name("shell", args[0], SCRIPTS)
    cases = [f'    {name}) words="{" ".join(completion_words(name))}" ;;' for name in COMMANDS]
    print_line(
        SCRIPTS[args[0]].format(commands=" ".join(COMMANDS), cases="\n".join(cases)).rstrip()
    )
    return 0


def completion_words(command: str) -> list[str]:
    """The words that can follow a command: names of recipes, and the options on its pages."""
    rows = [row for family in listed_families().values() for row in family.rows]
    recipes = [row[0] for row in rows] if command == "train" else []
    # The options of `train` depend on the kind of recipe, which its settings begin with.
    kinds = dict.fromkeys(row[-1].partition(" ")[0] for row in rows)
    lines = [(command, kind) for kind in kinds] if recipes else [(command,)]
    pages = "\n".join(help_page(*line) or "" for line in lines)
    return [*recipes, *dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", pages))]
