"""Partitions of a data set over clients, one rule per file, named as Flower's partitioners."""

from gradveil.federated.partition._base import Partition, Partitioner, partition, partitioners
from gradveil.federated.partition._picture import partition_picture
from gradveil.federated.partition.dirichlet import Dirichlet
from gradveil.federated.partition.iid import Iid
from gradveil.federated.partition.natural_id import NaturalId
from gradveil.federated.partition.pathological import Pathological
from gradveil.federated.partition.size import Size

__all__ = [
    "Dirichlet",
    "Iid",
    "NaturalId",
    "Partition",
    "Partitioner",
    "Pathological",
    "Size",
    "partition",
    "partition_picture",
    "partitioners",
]
