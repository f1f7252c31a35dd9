"""Write the list of recipes that `nsim recipes` shows."""

from neural_similarity.lab.recipes.listing import LIST, listed

LIST.write_text(listed(), encoding="utf-8")
