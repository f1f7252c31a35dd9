"""Write the pages that `nsim COMMAND --help` shows."""

from neural_similarity.files import write_text
from neural_similarity.lab.cli.help_pages import PAGES
from neural_similarity.lab.cli.parsed_help import (
    COMMAND_LINES,
    RECIPE_LINES,
    pages_content,
    parsed_page,
)

write_text(PAGES, pages_content({line: parsed_page(line) for line in COMMAND_LINES + RECIPE_LINES}))
