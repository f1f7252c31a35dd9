"""Write what is shown without torch: the help of commands, and the lists of recipes."""

from neural_similarity.files import write_text
from neural_similarity.lab.cli.help_pages import page_path
from neural_similarity.lab.cli.page_writing import COMMAND_LINES, parsed_page
from neural_similarity.lab.cli.recipes import recipe_lists
from neural_similarity.lab.recipes import FAMILIES
from neural_similarity.lab.recipes.basic import FAMILIES as BASIC
from neural_similarity.lab.recipes.listing import list_text

others = {name: family for name, family in FAMILIES.items() if name not in BASIC}
for path, families in zip(recipe_lists(), (BASIC, others), strict=False):
    write_text(path, list_text(families))
for page, line in COMMAND_LINES.items():
    if path := page_path(page):
        path.parent.mkdir(exist_ok=True)
        write_text(path, parsed_page(line))
