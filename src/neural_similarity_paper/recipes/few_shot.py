"""Few-shot learning: the recipes of Table 6's rows, and of controls that it lacks.

Pretraining classifies the base classes, by Adam at 1e-3 as in the paper. Batch size, epochs and
drops of the rate are open in the paper; here they are 128, the best step on the validation classes
within 100 epochs, and tenfold drops after 60 and 85 epochs. We add crops and mirror images to all
rows but MAML, ANIL and meta-learned NSN, which have neither, nor drops, as in their papers.
All fine-tuned rows share one backbone.
The other episodic methods take ways and rates from their own papers, but fewer steps, tenfold drops
after 60 and 85 % of the steps where the papers halve the rate, and no gradient clipping. ProtoNet
has 5 queries per class instead of its paper's 15, which gives twice the updates for as many images.
"""

from dataclasses import replace

from neural_similarity.lab.recipes.families import Family, named
from neural_similarity.lab.tasks.few_shot.recipe import FewShotRecipe
from neural_similarity.nn import Diagonal, Dynamic, Static
from neural_similarity_paper.recipes.cifar import PREDICTOR

FEW_SHOT_BASE = FewShotRecipe(select_on="val", drops=(18_000, 25_500))
EPISODIC = replace(FEW_SHOT_BASE, steps=40_000, drops=(24_000, 34_000), evaluate_every=2_000)
PROTO = replace(
    EPISODIC,
    method="proto",
    ways=20,
    queries=5,
    steps=20_000,
    drops=(12_000, 17_000),
    evaluate_every=500,
)
RELATION = replace(EPISODIC, method="relation", queries=10)
MAML = replace(
    EPISODIC,
    method="maml",
    meta_batch=4,
    steps=15_000,
    drops=(),
    evaluate_every=250,
    precision="fp32",
    crop=0,
    flip=False,
)
FIRST_ORDER, META = (replace(MAML, method=name) for name in ("maml-first-order", "meta-nsn"))
STATIC, DYNAMIC = Static(Diagonal()), Dynamic(Diagonal(), predictor=PREDICTOR)

# Pretraining on the base classes.
PRETRAINING = {
    "cnn4": ("backbone of fine-tuning, nearest neighbour, static NSN", FEW_SHOT_BASE),
    "cnn4-64": (
        "the same with 64 filters: as large as dynamic NSN",
        replace(FEW_SHOT_BASE, width=2),
    ),
    "cnn4-cosine": ("backbone of Baseline++", replace(FEW_SHOT_BASE, method="baseline++")),
    "dynamic": ("dynamic NSN", replace(FEW_SHOT_BASE, similarity=DYNAMIC)),
    "cnn9": ("CNN-9, the control of the deeper dynamic NSN", replace(FEW_SHOT_BASE, model="cnn9")),
    "resnet12": ("ResNet-12, where TADAM starts", replace(FEW_SHOT_BASE, model="resnet12")),
    "resnet34": ("ResNet-34, for discriminative k-shot", replace(FEW_SHOT_BASE, model="resnet34")),
    "wrn28": ("WRN-28-10, where LEO starts", replace(FEW_SHOT_BASE, model="wrn28_10")),
    "dynamic-cnn9": (
        "dynamic NSN on CNN-9",
        replace(FEW_SHOT_BASE, model="cnn9", similarity=DYNAMIC),
    ),
}
# Episodic training with 5 shots; `ONE_SHOT` has each recipe with 1 shot.
BY_TASKS = {
    "matching": ("matching networks", replace(EPISODIC, method="matching")),
    "matching-fce": (
        "matching networks, full context embeddings",
        replace(EPISODIC, method="matching-fce"),
    ),
    "proto": ("prototypical networks, 20 ways", PROTO),
    "proto-64": ("the same with 64 filters", replace(PROTO, width=2)),
    "proto-static": ("the same, static similarity", replace(PROTO, similarity=STATIC)),
    "proto-dynamic": ("the same, dynamic similarity", replace(PROTO, similarity=DYNAMIC)),
    "proto-pretrained": ("prototypical networks from mini-cnn4, 20 ways", PROTO),
    "relation": ("relation networks", RELATION),
    "relation-static": ("the same, static similarity", replace(RELATION, similarity=STATIC)),
    "relation-dynamic": ("the same, dynamic similarity", replace(RELATION, similarity=DYNAMIC)),
    "maml": ("MAML", MAML),
    "maml-first-order": ("MAML of first order", FIRST_ORDER),
    "maml-static": ("MAML, static similarity", replace(MAML, similarity=STATIC)),
    "maml-dynamic": ("MAML, dynamic similarity", replace(MAML, similarity=DYNAMIC)),
    "anil": ("ANIL: MAML of the head alone", replace(FIRST_ORDER, method="anil")),
    "tadam": (
        "TADAM on ResNet-12, from mini-resnet12",
        replace(EPISODIC, method="tadam", model="resnet12"),
    ),
    "leo": (
        "LEO on WRN-28-10, from mini-wrn28",
        replace(EPISODIC, method="leo", model="wrn28_10", lr=4.102361e-4, meta_batch=12),
    ),
    "meta-static": (
        "meta-learned static NSN, from mini-cnn4",
        replace(META, similarity=STATIC),
    ),
    "meta-dynamic": (
        "meta-learned dynamic NSN, from mini-dynamic",
        replace(META, similarity=DYNAMIC),
    ),
}
# The second half of the first table of the authors' response.
BY_TASKS |= {
    f"{host}-{kind}-cnn9": (
        f"{text} on CNN-9, {kind} similarity",
        replace(BY_TASKS[host][1], model="cnn9", similarity=similarity),
    )
    for host, text in (
        ("maml", "MAML"),
        ("proto", "prototypical networks, 20 ways,"),
        ("relation", "relation networks"),
    )
    for kind, similarity in (("static", STATIC), ("dynamic", DYNAMIC))
} | {
    "maml-cnn9": ("MAML on CNN-9", replace(MAML, model="cnn9")),
    "meta-static-cnn9": (
        "meta-learned static NSN on CNN-9, from mini-cnn9",
        replace(META, model="cnn9", similarity=STATIC),
    ),
}
ONE_SHOT_FIELDS = {"proto": {"ways": 30}, "relation": {"queries": 15}, "leo": {"lr": 2.739071e-4}}
"""Settings that the papers of some methods change for one shot."""
ONE_SHOT = {
    f"{name}-1shot": (
        text.replace("20 ways", "30 ways") + "; 1 shot",
        replace(recipe, shots=1, **ONE_SHOT_FIELDS.get(recipe.method, {})),
    )
    for name, (text, recipe) in BY_TASKS.items()
}
MINI = named("mini-", PRETRAINING | BY_TASKS | ONE_SHOT)

_STARTS = {
    "tadam": "resnet12",
    "leo": "wrn28",
    "proto-pretrained": "cnn4",
    "meta-static": "cnn4",
    "meta-static-cnn9": "cnn9",
    "meta-dynamic": "dynamic",
}
FEW_SHOT_STARTS = {
    f"mini-{name}{shots}": f"mini-{source}"
    for name, source in _STARTS.items()
    for shots in ("", "-1shot")
}
"""For each recipe that starts from another run, the recipe of that run."""
FEW_SHOT: dict[str, Family] = {
    "mini": ("few-shot learning on Mini-ImageNet, table 6", MINI),
}
