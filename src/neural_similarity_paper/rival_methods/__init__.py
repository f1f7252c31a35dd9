"""Few-shot methods of others that Table 6 has besides those of the laboratory.

The entry point `neural_similarity.methods` names this package, so that recipes may name them.
"""

from neural_similarity.lab.tasks.few_shot.methods import METHODS, Kind
from neural_similarity_paper.rival_methods.leo import ONE_SHOT_SETTINGS, Leo
from neural_similarity_paper.rival_methods.tadam import Tadam

METHODS.update(
    tadam=Kind(lambda network, _: Tadam(network), episodic=True),
    leo=Kind(  # Its authors' settings are for one shot, or for five.
        lambda network, sizes: Leo(network, ONE_SHOT_SETTINGS if sizes.shots == 1 else None),
        episodic=True,
        frozen=True,
    ),
)
