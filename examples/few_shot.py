"""A few-shot method of your own, beside the library's, on the same tasks."""

import matplotlib.pyplot as plt
from torch.nn import functional as F

from neural_similarity.lab import session
from neural_similarity.lab.tasks import few_shot


class CosinePrototypes(few_shot.Metric):
    def adapt(self, support, labels, ways):
        prototypes = few_shot.class_means(F.normalize(support, dim=-1), labels, ways)
        return lambda query: 10 * few_shot.cosine_matrix(query, prototypes)


few_shot.METHODS["cosine-prototypes"] = few_shot.Kind(
    build=lambda network, sizes: CosinePrototypes(network[:-1]), episodic=False
)
recipe = few_shot.FewShotRecipe(
    method="cosine-prototypes", dataset="embedded", steps=40, width=0.25, crop=1
)
run = session.train(recipe, out="runs/cosine-prototypes")

split = few_shot.load_split("embedded", "data")
sizes = few_shot.TaskSizes(ways=3)
tasks = few_shot.draw_tasks(split.test, sizes, 600, seed=0, data=split.digest, part="test")
accuracies = {}
for method in ("cosine-prototypes", "nearest-neighbour"):
    evaluation, file = few_shot.Evaluator(method=method)(run, split, tasks)
    accuracies[method] = 100 * evaluation.accuracies
    percent, reach = (100 * evaluation.summary[key] for key in ("accuracy", "reach"))
    print(f"{method}: {percent:.1f} ± {reach:.1f} % of queries, in {file.parent}")

gain = accuracies["cosine-prototypes"] - accuracies["nearest-neighbour"]
reach = 1.96 * gain.std() / len(gain) ** 0.5
print(f"task by task {gain.mean():+.1f} ± {reach:.1f} points")
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.hist(gain, bins=20)
axes.axvline(0, color="black", linewidth=1)
axes.set(xlabel="cosine prototypes − nearest neighbour, points", ylabel="tasks")
figure.savefig(run.path / "plots/gain.png", dpi=150)
