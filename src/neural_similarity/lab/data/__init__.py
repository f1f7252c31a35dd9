"""Data sets, and batches that are functions of seed and step."""

from neural_similarity.lab.data.batches import Batches as Batches
from neural_similarity.lab.data.batches import FileBatches as FileBatches
from neural_similarity.lab.data.batches import Place as Place
from neural_similarity.lab.data.class_split import ClassSplit as ClassSplit
from neural_similarity.lab.data.download import OURS as OURS
from neural_similarity.lab.data.download import download_dataset as download_dataset
from neural_similarity.lab.data.imagenet import lay_out as lay_out
from neural_similarity.lab.data.images import Dataset as Dataset
from neural_similarity.lab.data.images import ImageFiles as ImageFiles
from neural_similarity.lab.data.images import Images as Images
from neural_similarity.lab.data.images import ImageSet as ImageSet
from neural_similarity.lab.data.images import hold_out as hold_out
from neural_similarity.lab.data.registry import FOLDER as FOLDER
from neural_similarity.lab.data.registry import IN_PLACE as IN_PLACE
from neural_similarity.lab.data.registry import NAMES as NAMES
from neural_similarity.lab.data.registry import load_dataset as load_dataset
from neural_similarity.lab.data.registry import require_folder as require_folder
from neural_similarity.lab.data.splits import OLDER_NAMES as OLDER_NAMES
from neural_similarity.lab.data.splits import SPLIT_NAMES as SPLIT_NAMES
from neural_similarity.lab.data.splits import load_split as load_split
from neural_similarity.lab.data.transforms import Augment as Augment
from neural_similarity.lab.data.transforms import Inputs as Inputs
from neural_similarity.lab.data.transforms import Preprocess as Preprocess
from neural_similarity.lab.plugins import load_entries as _load_entries

_load_entries("datasets")
