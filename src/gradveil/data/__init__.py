"""Data sets: published files read as they are, your own images, and an embedded default."""

from gradveil.data._base import Dataset, PublishedFile, Source, Split, sources
from gradveil.data._catalogue import Availability, available, data_root, download, explain, load
from gradveil.data._download import Progress
from gradveil.data._draw import class_counts, draw_victims, mean_image

__all__ = [
    "Availability",
    "Dataset",
    "Progress",
    "PublishedFile",
    "Source",
    "Split",
    "available",
    "class_counts",
    "data_root",
    "download",
    "draw_victims",
    "explain",
    "load",
    "mean_image",
    "sources",
]
