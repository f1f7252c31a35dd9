"""Layers with a similarity, and the specs that describe one."""

from neural_similarity.nn.conv import Conv2d as Conv2d
from neural_similarity.nn.conv import build_similarity as build_similarity
from neural_similarity.nn.geometry import Geometry as Geometry
from neural_similarity.nn.predictor import SphereNet as SphereNet
from neural_similarity.nn.similarity import SIMILARITIES as SIMILARITIES
from neural_similarity.nn.similarity import Dynamic as Dynamic
from neural_similarity.nn.similarity import DynamicSimilarity as DynamicSimilarity
from neural_similarity.nn.similarity import Static as Static
from neural_similarity.nn.similarity import StaticSimilarity as StaticSimilarity
from neural_similarity.nn.structure import Diagonal as Diagonal
from neural_similarity.nn.structure import Full as Full
from neural_similarity.nn.structure import Masked as Masked
from neural_similarity.nn.structure import PositiveSemidefinite as PositiveSemidefinite
from neural_similarity.nn.structure import StructureModule as StructureModule
from neural_similarity.nn.structure import Symmetric as Symmetric
from neural_similarity.nn.text import format_similarity as format_similarity
from neural_similarity.nn.text import parse_similarity as parse_similarity
