"""What an adversary who was granted auxiliary knowledge has: public images, and networks from checkpoints."""

import json
from pathlib import Path

import torch
from torch import nn

from gradveil import data
from gradveil.data import Dataset, Split
from gradveil.engine import normalized
from gradveil.errors import DataError
from gradveil.models import build, checkpoints, generators, last_linear
from gradveil.spec import AuditSpec, parse_knowledge
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge


def public_material(
    spec: AuditSpec, dataset: Dataset, *, data_dir: Path | None = None, device: torch.device | None = None
) -> Auxiliary | None:
    """Collect the public material of a spec; None unless the spec grants some.

    Args:
        spec: says which images, how many, and which checkpoints.
        dataset: of the private images.
        data_dir: where data sets lie.
        device: where the material is to lie.
    """
    if Knowledge.AUXILIARY not in parse_knowledge(spec.knowledge):
        return None
    place = device or torch.device("cpu")
    public = dataset if spec.auxiliary in {"", spec.dataset} else data.load(spec.auxiliary, data_dir)
    if public.input_shape != dataset.input_shape:
        raise DataError(
            f"public images must have the shape {dataset.input_shape} of the private ones, but {spec.auxiliary} has "
            f"{public.input_shape}; name another data set, or folder:PATH,size=..."
        )
    split = _other_split(public, spec) if public is dataset else public.train
    chosen = Streams(seed=spec.seed, purpose="auxiliary").bind(1).permutation("images", len(split))[0]
    some = split.select(chosen[: spec.auxiliary_images])
    return Auxiliary(
        inputs=some.inputs().to(place),
        labels=some.labels.to(place) if public.classes == dataset.classes else None,
        generator=load_generator(Path(spec.generator), dataset).to(place) if spec.generator else None,
        extractor=load_extractor(Path(spec.extractor), dataset).to(place) if spec.extractor else None,
    )


def load_generator(path: Path, dataset: Dataset) -> nn.Module:
    """Load a generator of images of a data set's shape."""
    generator = generators.load(path.expanduser())
    if tuple(generator.shape) != dataset.input_shape:
        shapes = f"{tuple(generator.shape)}, but the audit has {dataset.input_shape}"
        raise DataError(f"{path} makes images {shapes}; give another generator")
    return generator


def load_extractor(path: Path, dataset: Dataset) -> nn.Module:
    """Load a checkpoint of `gradveil train` as a network from images to the features before its last linear layer.

    Args:
        path: of the checkpoint.
        dataset: whose images it must take.
    """
    about = checkpoints.read_about(path.expanduser())
    try:
        shape, classes = tuple(json.loads(about["input_shape"])), int(about["num_classes"])
        mean, std = json.loads(about["mean"]), json.loads(about["std"])
        name = about["model"]
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} does not say what network it is ({error}); make it by `gradveil train`") from error
    if shape != dataset.input_shape:
        raise DataError(f"{path} takes images {shape}, but the audit has {dataset.input_shape}; give another extractor")
    model = normalized(build(name, input_shape=dataset.input_shape, num_classes=classes), mean, std)
    checkpoints.load(path.expanduser(), model)
    model.set_submodule(last_linear(model), nn.Identity())
    return model.eval().requires_grad_(False)


def _other_split(dataset: Dataset, spec: AuditSpec) -> Split:
    return dataset.train if spec.split == "test" else dataset.test
