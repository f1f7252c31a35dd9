"""Write the list of recipes that `nsim recipes` shows."""

from neural_similarity.lab.recipes.listing import LIST, recipe_list

LIST.write_text(recipe_list(), encoding="utf-8")
