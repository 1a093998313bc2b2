"""Images beside the private ones: what an adversary has, what decoys are drawn from, what defenses draw from."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gradveil import data
from gradveil._scoring import Reference
from gradveil.data import Dataset, Split
from gradveil.engine import normalized
from gradveil.errors import DataError
from gradveil.models import build, checkpoints, generators, last_linear
from gradveil.spec import SPLITS, AuditSpec, parse_knowledge
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Knowledge

_POOL = 5000  # images are enough to draw from


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who gets which images of the attacked split; nobody gets another's.

    Args:
        victims: (V · B,) the private ones, victim by victim.
        public: of the adversary, if it is to have images like the private ones.
        reference: of the auditor: decoys, and guesses that know nothing. The private ones are among them, because an
            image does not compete with itself.
    """

    victims: Tensor
    public: Tensor
    reference: Tensor


def share(spec: AuditSpec, dataset: Dataset) -> Shares:
    """Share out the attacked split.

    The adversary gets as many images as the spec says, and at most half of those that are nobody's where the split is
    too small to leave as many decoys. Images of who is a victim, where a data set says whose they are, are nobody's.
    """
    split = _split(dataset, spec.split)
    victims = victims_of(spec, split)
    everybody = torch.arange(len(split))
    mine = torch.isin(everybody, victims)
    if split.identity is not None:
        mine |= torch.isin(split.identity, split.identity[victims])
    free = everybody[~mine]
    count = 0
    if _granted(spec) and _source(spec.auxiliary, spec, spec.split) == spec.split:
        count = min(spec.auxiliary_images, max(len(free) - spec.decoys, len(free) // 2))
    order = Streams(seed=spec.seed, purpose="auxiliary").bind(1).permutation("images", len(free))[0]
    public = free[order[:count]]
    return Shares(victims=victims, public=public, reference=everybody[~torch.isin(everybody, public)])


def victims_of(spec: AuditSpec, split: Split) -> Tensor:
    """Return the (V · B,) indices of a spec's private images."""
    numbers = torch.arange(len(split)).view(-1, 1, 1, 1)
    marked = Split((numbers % 256).to(torch.uint8), numbers.flatten())
    return _drawn(spec, marked).labels.flatten()


def draw(spec: AuditSpec, dataset: Dataset) -> Batch:
    """Take the private images of a spec."""
    return _drawn(spec, _split(dataset, spec.split))


def reference(spec: AuditSpec, dataset: Dataset) -> Reference:
    """Take the images that the auditor compares with: none that the adversary has."""
    kept = _split(dataset, spec.split).select(share(spec, dataset).reference)
    return Reference(kept.inputs(), kept.labels)


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
    if not _granted(spec):
        return None
    place, source = device or torch.device("cpu"), _source(spec.auxiliary, spec, spec.split)
    if source == spec.split:
        some, alike = _split(dataset, spec.split).select(share(spec, dataset).public), True
    else:
        public = _load(source, dataset, data_dir)
        split = _split(public, source if source in SPLITS else "train")
        chosen = Streams(seed=spec.seed, purpose="auxiliary").bind(1).permutation("images", len(split))[0]
        some, alike = split.select(chosen[: spec.auxiliary_images]), public.classes == dataset.classes
    return Auxiliary(
        inputs=some.inputs().to(place),
        labels=some.labels.to(place) if alike else None,
        generator=load_generator(Path(spec.generator), dataset).to(place) if spec.generator else None,
        extractor=load_extractor(Path(spec.extractor), dataset).to(place) if spec.extractor else None,
    )


def client_pool(spec: AuditSpec, dataset: Dataset, *, data_dir: Path | None = None) -> Tensor:
    """Return (N, C, H, W) images that the clients' defenses may draw from; none of them is a private one."""
    other = "train" if spec.split == "test" else "test"
    source = _source(spec.pool, spec, other)
    split = _split(_load(source, dataset, data_dir), source if source in SPLITS else "train")
    order = Streams(seed=spec.seed, purpose="pool").bind(1).permutation("images", len(split))[0]
    if source == spec.split:
        order = order[~torch.isin(order, victims_of(spec, split))]
    return split.inputs(order[:_POOL])


def _granted(spec: AuditSpec) -> bool:
    return Knowledge.AUXILIARY in parse_knowledge(spec.knowledge)


def _source(name: str, spec: AuditSpec, default: str) -> str:
    """Return where images come from: a split of the private data set, or the name of another data set."""
    return default if not name else "train" if name == spec.dataset else name


def _load(source: str, dataset: Dataset, data_dir: Path | None) -> Dataset:
    """Load a data set whose images are like the private ones."""
    if source in SPLITS:
        return dataset
    loaded = data.load(source, data_dir)
    if loaded.input_shape != dataset.input_shape:
        raise DataError(
            f"public images must have the shape {dataset.input_shape} of the private ones, but {source} has "
            f"{loaded.input_shape}; name another data set, or folder:PATH,size=..."
        )
    return loaded


def _drawn(spec: AuditSpec, split: Split) -> Batch:
    start = None if spec.start < 0 else spec.start
    return data.draw_victims(split, victims=spec.victims, batch_size=spec.batch_size, seed=spec.seed, start=start)


def _split(dataset: Dataset, name: str) -> Split:
    return dataset.test if name == "test" else dataset.train


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
