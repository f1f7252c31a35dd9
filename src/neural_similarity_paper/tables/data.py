"""The paper's recognition tables as data: each row's label, reported number and recipe.

Numbers: Liu et al., Neural Similarity Learning, tables 1 to 5 and 8, and table 2 of the authors'
response. A row whose recipe is not in `recipes` is shown without runs; it comes to life by that
name. Studies that the paper does not have are tables without its numbers.
"""

from collections.abc import Mapping
from dataclasses import replace

from neural_similarity.choices import require_known
from neural_similarity.lab.recipes import SUFFIX, VARIANTS
from neural_similarity.lab.recipes.families import Recipes
from neural_similarity_paper.recipes.adaptation import GROUPS
from neural_similarity_paper.recipes.end import ARMS
from neural_similarity_paper.tables.rows import Panel, Row, Table, on_other_data
from neural_similarity_paper.tables.table6 import few_shot_table


def error_panel(title: str, *rows: Row) -> Panel:
    """Rows that are compared by their error."""
    return Panel(title, "error", rows)


def cifar10_table(title: str, *rows: Row) -> Table:
    """A table of errors on CIFAR-10."""
    return Table(title, (error_panel("CIFAR-10", *rows),))


CIFAR10_BASELINE = Row("CNN", "cifar10-cnn", 7.78)
CIFAR10_DYNAMIC = Row("dynamic DNS", "cifar10-dynamic-dns", 6.85)

CIFAR10_TABLE = (
    CIFAR10_BASELINE,
    Row("CNN, parameters of dynamic DNS", "cifar10-cnn-parameters"),
    Row("CNN++", "cifar10-cnn++", 7.29),
    Row("static DNS", "cifar10-static-dns", 7.15),
    Row("static UNS", "cifar10-static-uns", 7.38),
    CIFAR10_DYNAMIC,
    Row("dynamic UNS", "cifar10-dynamic-uns", 6.5),
)
CIFAR100_TABLE = (
    Row("CNN", "cifar100-cnn", 28.95),
    Row("CNN, parameters of dynamic DNS", "cifar100-cnn-parameters"),
    Row("CNN++", "cifar100-cnn++", 28.70),
    Row("static DNS", "cifar100-static-dns", 28.35),
    Row("static UNS", "cifar100-static-uns", 28.11),
    Row("dynamic DNS", "cifar100-dynamic-dns", 27.81),
    Row("dynamic UNS", "cifar100-dynamic-uns", 28.02),
)
IMAGENET_TABLE = (
    Row("CNN-10", "imagenet-cnn10", 42.72, top5=19.11, parameters=8.90),
    Row("CNN-10++", "imagenet-cnn10++", 42.11, top5=18.98, parameters=9.71),
    Row("dynamic DNS", "imagenet-cnn10-dynamic-dns", 40.61, top5=18.04, parameters=9.61),
)
SELF_ATTENTION = (
    Row("CNN", "cifar10-wide-cnn", 90.86),
    Row("CNN with self-attention", "cifar10-wide-cnn-attention", 90.69),
    Row("SphereNet", "cifar10-spherenet", 91.31),
    Row("SphereNet with self-attention", "cifar10-spherenet-attention", 91.76),
)
RESNET18 = (
    Row("ResNet-18", "imagenet-resnet18", 31.69),
    Row("static DNS", "imagenet-resnet18-static-dns", 30.12),
    Row("dynamic DNS", "imagenet-resnet18-dynamic-dns", 29.68),
)
RESNET50 = (
    Row("ResNet-50", "imagenet-resnet50", 24.77),
    Row("static DNS", "imagenet-resnet50-static-dns", 23.91),
    Row("dynamic DNS", "imagenet-resnet50-dynamic-dns", 23.45),
)

ABLATION_TABLE = (
    error_panel(
        "Start of static DNS",
        Row("at I", "cifar10-static-dns"),
        Row("at eye(3) flattened", "cifar10-static-dns-eye"),
    ),
    error_panel(
        "Predictor of dynamic DNS",
        Row("CNN", "cifar10-cnn"),
        Row("batch normalisation, patches of mean square 1", "cifar10-dynamic-dns"),
        Row("patches of mean square 1", "cifar10-dynamic-dns-plain"),
        Row("patches of norm 1, kernel as much larger", "cifar10-dynamic-dns-unit"),
        Row("batch normalisation, patches of norm 1", "cifar10-dynamic-dns-unit-norm"),
        Row("the same, small start, no gains (as released)", "cifar10-dynamic-dns-norm"),
        Row("patches and kernels of norm 1, bounded", "cifar10-dynamic-dns-both"),
    ),
    error_panel(
        "Eps of the released predictors' batch normalisation",
        Row("1e-3", "cifar10-dynamic-dns-norm"),
        Row("1e-5", "cifar10-dynamic-dns-norm-1e-5"),
    ),
    error_panel(
        "Start of dynamic UNS",
        Row("identity and gains", "cifar10-dynamic-uns"),
        Row("identity", "cifar10-dynamic-uns-no-gains"),
        Row("neither", "cifar10-dynamic-uns-no-identity"),
    ),
    error_panel(
        "Identity in dynamic UNS without gains",
        Row("added", "cifar10-dynamic-uns-no-gains"),
        Row("not added", "cifar10-dynamic-uns-no-identity"),
    ),
    error_panel(
        "Input and targets of the plain CNN",
        Row("normalised pixels, mirrored border, exact targets", "cifar10-cnn"),
        Row("raw pixels", "cifar10-cnn-raw"),
        Row("zeros around the crops", "cifar10-cnn-zero"),
        Row("targets smoothed by 0.01", "cifar10-cnn-smooth"),
    ),
)
DYNAMIC_ROW = Row("dynamic DNS", "cifar10-dynamic-dns")
COSTS = (
    DYNAMIC_ROW,
    Row("half the hidden units", "cifar10-dynamic-dns-half-width"),
    Row("half the resolution", "cifar10-dynamic-dns-half-resolution"),
    Row("second layer 1×1", "cifar10-dynamic-dns-1x1"),
    Row("shared", "cifar10-dynamic-dns-shared"),
    Row("one M an image", "cifar10-dynamic-dns-per-image"),
    Row("CNN", "cifar10-cnn"),
    Row("CNN of as many MACs", "cifar10-cnn-macs"),
    Row("CNN about as slow", "cifar10-cnn-time"),
)
CHEAP = {
    "cifar10-cnn-time-light-diagonal": Row("diagonal M, Light", "cifar10-light-diagonal"),
    "cifar10-cnn-time-light-full": Row("full M, Light", "cifar10-light-full"),
    "cifar10-cnn-time-light-low-rank": Row("M of rank 1, Light", "cifar10-light-low-rank"),
    "cifar10-cnn-macs": Row("half the resolution", "cifar10-dynamic-dns-half-resolution"),
}
"""Rows by the recipe of a plain network whose update takes as long."""
CHEAP_TABLE = (
    error_panel(
        "CIFAR-10",
        Row("CNN", "cifar10-cnn"),
        Row("static DNS", "cifar10-static-dns"),
        Row("static UNS", "cifar10-static-uns"),
        Row("full M an image, from averages", "cifar10-pooled"),
        *CHEAP.values(),
    ),
    *(
        error_panel(
            f"{row.label}, beside a plain network",
            Row("CNN about as slow", plain),
            row,
        )
        for plain, row in CHEAP.items()
    ),
)
LONGER_TABLE = tuple(
    Panel(
        f"CIFAR-{classes}",
        "error",
        tuple(
            Row(label, f"cifar{classes}-{name}")
            for label, name in (
                ("CNN", "cnn"),
                ("dynamic DNS", "dynamic-dns"),
                ("CNN for as long", "cnn-long-dns"),
                ("dynamic UNS", "dynamic-uns"),
                ("CNN for as long as that", "cnn-long-uns"),
            )
        ),
    )
    for classes in (10, 100)
)
STRUCTURE_TABLE = (
    Row("full", "cifar10-static-uns"),
    Row("diagonal", "cifar10-static-dns"),
    Row("symmetric", "cifar10-static-symmetric"),
    Row("positive semi-definite", "cifar10-static-psd"),
    Row("nine entries", "cifar10-static-sparse"),
    Row("under an L1 penalty", "cifar10-static-l1"),
    Row("over channels and taps", "cifar10-static-unstructured"),
)
BASELINE_TABLE = (
    Row("CNN", "cifar10-cnn"),
    DYNAMIC_ROW,
    Row("dynamic DNS, one M an image", "cifar10-dynamic-dns-per-image"),
    Row("full M an image, from averages", "cifar10-pooled"),
    Row("diagonal M an image, from averages", "cifar10-pooled-diagonal"),
    Row("CondConv, 4 kernels", "cifar10-condconv"),
    Row("dynamic filter network", "cifar10-dynamic-filter"),
    Row("modulated deformable convolution", "cifar10-deformable"),
)
SHARING_TABLE = tuple(
    error_panel(
        f"CIFAR-10, static {kind}",
        Row("one M a layer", f"cifar10-static-{kind.lower()}"),
        Row("M for each filter", f"cifar10-static-{kind.lower()}-by-filter"),
    )
    for kind in ("DNS", "UNS")
)
SHAPE_TABLE = tuple(
    error_panel(
        f"CIFAR-10, {kind} DNS",
        Row("without D", f"cifar10-{kind}-dns"),
        Row("D_r at the rate of all else", f"cifar10-{kind}-dns-j"),
        Row("10 times as fast", f"cifar10-{kind}-dns-j-rate10"),
        Row("100 times as fast", f"cifar10-{kind}-dns-j-rate100"),
    )
    for kind in ("static", "dynamic")
)
PRETRAINED_TABLE = (
    Row("CNN trained on, plain", "cifar10-pretrained-cnn"),
    Row("CNN, where all start", "cifar10-cnn"),
    *(
        row
        for label in ("static DNS", "static UNS", "dynamic DNS")
        for name in [f"cifar10-pretrained-{label.lower().replace(' ', '-')}"]
        for row in (Row(f"{label}: M alone", f"{name}-m"), Row(f"{label}, then all", name))
    ),
)
END_TABLE = tuple(
    error_panel(
        f"CIFAR-{classes}",
        *(Row(text, f"cifar{classes}-end-{name}") for name, (text, _) in ARMS.items()),
    )
    for classes in (10, 100)
)
BOUND_TABLE = (
    Row("CNN", "cifar10-cnn"),
    Row("unbounded CNN predictor", "cifar10-dynamic-dns-cnn-unbounded"),
    Row("bounded by tanh", "cifar10-dynamic-dns-cnn-tanh"),
    Row("bounded by a sigmoid", "cifar10-dynamic-dns-cnn-sigmoid"),
    Row("of length 1", "cifar10-dynamic-dns-cnn-normalized"),
    Row("SphereNet predictor", "cifar10-dynamic-dns-plain"),
)


def table_in_variant(table: Table, variant: str) -> Table:
    """The table with the runs of the recipes' variant, "paper" (as it is) or "released"."""
    require_known("variant", variant, VARIANTS)
    if variant == "paper":
        return table
    panels = (
        replace(
            panel,
            rows=tuple(replace(row, recipe=row.recipe + SUFFIX) for row in panel.rows),
        )
        for panel in table.panels
    )
    title = f"{table.title}, as the released code trains"
    return replace(table, title=title, panels=tuple(panels))


def _adaptation_panel(title: str, recipes: Recipes) -> Panel:
    """A row for each recipe, the first one the baseline."""
    rows = tuple(Row(label, name) for name, (label, _) in recipes.items())
    return Panel(title, "accuracy", rows)


def _by_images(title: str, names: Mapping[int, str]) -> tuple[Panel, ...]:
    """A panel for each number of training images of a class."""
    return tuple(
        _adaptation_panel(f"{title}, {each} images of each", GROUPS[name])
        for each, name in names.items()
    )


TABLES = {
    "1": cifar10_table(
        "Table 1: predictors",
        CIFAR10_BASELINE,
        Row("dynamic DNS, CNN predictor", "cifar10-dynamic-dns-cnn", 7.04),
        Row("dynamic DNS, SphereNet predictor", "cifar10-dynamic-dns", 6.85),
    ),
    "2": cifar10_table(
        "Table 2: kernel shape and similarity learned jointly (J)",
        CIFAR10_BASELINE,
        Row("static DNS", "cifar10-static-dns", 7.15),
        Row("static DNS (J)", "cifar10-static-dns-j", 6.92),
        CIFAR10_DYNAMIC,
        Row("dynamic DNS (J)", "cifar10-dynamic-dns-j", 6.64),
    ),
    "3": cifar10_table(
        "Table 3: parametrisations of the predictor",
        CIFAR10_BASELINE,
        Row("dynamic DNS, shared predictor", "cifar10-dynamic-dns-shared", 7.20),
        Row("dynamic DNS, disjoint predictors", "cifar10-dynamic-dns", 6.85),
    ),
    "4": Table(
        "Table 4: CIFAR-10 and CIFAR-100",
        (error_panel("CIFAR-10", *CIFAR10_TABLE), error_panel("CIFAR-100", *CIFAR100_TABLE)),
    ),
    "5": Table("Table 5: CNN-10 on ImageNet", (error_panel("ImageNet", *IMAGENET_TABLE),)),
    "6": few_shot_table(),
    "8": Table(
        "Table 8: SphereNet and self-attention", (Panel("CIFAR-10", "accuracy", SELF_ATTENTION),)
    ),
    "response": Table(
        "Author response, table 2: ResNet on ImageNet",
        (error_panel("ResNet-18", *RESNET18), error_panel("ResNet-50", *RESNET50)),
    ),
    "ablations": Table("Ablations: where paper and released code differ", ABLATION_TABLE),
    "costs": replace(
        cifar10_table("Error against cost: cheaper predictors, wider plain networks", *COSTS),
        note="At 4,000 steps no dynamic row has a lower error than the plain CNN about as slow. "
        "At 1,000 steps, with one seed, a full M of `ns.Light` has: 20.90 % beside 27.80; but the "
        "plain CNN-9 is at 17.15 % after 2,000 steps, in less time (`nsim table light`).",
    ),
    "light": Table("Cheap predictors beside plain networks of the same training time", CHEAP_TABLE),
    "adapt": Table(
        "Adaptation: ResNet-20 of CIFAR-10 to ten hand signs, with a new head",
        _by_images("Sign digits", {20: "signs", 5: "signs-5", 160: "signs-160"}),
    ),
    "adapt-lite0": Table(
        "Adaptation: EfficientNet-Lite0 of ImageNet to ten hand signs, 128 pixels, with a new head",
        _by_images("Sign digits", {20: "signs-lite0", 5: "signs-lite0-5", 160: "signs-lite0-160"}),
    ),
    "adapt-flowers": Table(
        "Adaptation: EfficientNet-Lite0 of ImageNet to twelve flowers, 128 pixels, with a new head",
        _by_images("Flowers-12", {20: "flowers", 5: "flowers-5", 60: "flowers-60"}),
    ),
    "adapt-cifar": Table(
        "Adaptation: ResNet-20 of CIFAR-10 to changed images, 10 of each class, its head kept",
        (
            _adaptation_panel("CIFAR-10 under noise of deviation 25", GROUPS["noise-25"]),
            _adaptation_panel("CIFAR-10 under noise of deviation 50", GROUPS["noise-50"]),
            _adaptation_panel("CIFAR-10 under a turn by 30°", GROUPS["rotation-30"]),
            _adaptation_panel("CIFAR-10 under a turn by 90°", GROUPS["rotation-90"]),
        ),
    ),
    "time": Table("Plain networks trained for the time of dynamic similarity", LONGER_TABLE),
    "structures": Table(
        "Constraints on static M (§3.4)", (Panel("CIFAR-10", "error", STRUCTURE_TABLE),)
    ),
    "sharing": Table("M shared by the filters of a layer, or for each (§4)", SHARING_TABLE),
    "shapes": Table("Kernel shapes (J), by the rate of D_r (§3.5)", SHAPE_TABLE),
    "pretrained": cifar10_table(
        "Similarities on a pretrained network (§4): M alone, then all of it", *PRETRAINED_TABLE
    ),
    "bounds": cifar10_table(
        "Predictors without batch normalisation, bounded or not (§7.1)", *BOUND_TABLE
    ),
    "end": Table("Trained to the end by a fast schedule", END_TABLE),
    "rivals": cifar10_table("Baselines: other kernels that depend on the image", *BASELINE_TABLE),
}
TABLES |= {
    f"{name}-cifar100": on_other_data(TABLES[name], "CIFAR-100", "cifar10-", "cifar100-")
    for name in ("1", "2", "3", "8")
} | {
    f"{name}-mini100": on_other_data(
        TABLES[name], "Mini-ImageNet's 100 classes", "imagenet-", "mini100-"
    )
    for name in ("5", "response")
}
"""The tables by the names that `nsim table` and `nsim reproduce` take."""
