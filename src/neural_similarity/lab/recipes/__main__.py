"""Write the list of recipes that `nsim recipes` shows."""

from neural_similarity.files import write_text
from neural_similarity.lab.recipes.listing import LIST, list_content

write_text(LIST, list_content())
