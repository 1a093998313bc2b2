"""Mixtures of images: who is mixed, how much of each, and with which label."""

import secrets
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil.errors import DataError
from gradveil.streams import Streams
from gradveil.types import Protected

Rule: TypeAlias = Literal["power", "dirichlet"]
"""`power`: |N(0, 1)|^k over their sum, as InstaHide was published; `dirichlet`: of (3, 1, ..., 1), as in GradAttack."""

Randomness: TypeAlias = Literal["seeded", "secret"]
"""`seeded`: from the client's streams, for audits that repeat; `secret`: from the operating system, for real use."""

LARGEST = 8
_TRIES, _ROUNDS = 32, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a mixture is made.

    Args:
        k: images in it, the first of them the one it stands for; 1 mixes nothing.
        rule: of the coefficients.
        cap: no coefficient is above it.
        from_pool: how many of the k images come from the client's pool; the others come from the batch.
        floor: what the first two images of the batch hold together at least, where a pool is used.
        classes: length of soft labels; None where labels come soft already.
        randomness: where partners, coefficients and signs come from.
    """

    k: int
    rule: Rule
    cap: float
    from_pool: int
    floor: float
    classes: int | None
    randomness: Randomness = "seeded"

    def __post_init__(self) -> None:
        for name, kind in (("rule", Rule), ("randomness", Randomness)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be {' or '.join(get_args(kind))}, got '{getattr(self, name)}'")
        if not 1 <= self.k <= LARGEST:
            raise ValueError(f"k must be 1 to {LARGEST} images, got {self.k}")
        if not 0 <= self.from_pool < self.k:
            raise ValueError(f"from_pool must be 0 to {self.k - 1}, below k, got {self.from_pool}")
        if self.k > 1 and not 1 / self.k < self.cap <= 1:
            raise ValueError(f"cap must be above 1/k = {1 / self.k:.3g} and at most 1, got {self.cap}")
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be at least 0 and below 1, got {self.floor}")
        if self.classes is not None and self.classes < 1:
            raise ValueError(f"classes must be at least 1, got {self.classes}")

    @property
    def private(self) -> int:
        """How many of the k images come from the batch."""
        return self.k - self.from_pool


def mix(data: Protected, recipe: Recipe, *, pool: Tensor | None, streams: Streams) -> Protected:
    """Replace every image by a mixture of itself and of others, and its label likewise.

    Labels are mixed over the images of the batch alone, so that they sum to less than one where a pool is used.

    Args:
        data: (V, B, C, H, W) of at least `recipe.private` images.
        recipe: how to mix.
        pool: (N, C, H, W) further images.
        streams: who is mixed, and how much of each.
    """
    labels = _soft_labels(data, recipe.classes)
    partners = draw_partners(recipe.private, size=data.inputs.shape[1], streams=streams, like=data.inputs)
    weights = draw_coefficients(recipe, size=data.inputs.shape[1], streams=streams).to(data.inputs)
    own, rows = weights[..., : recipe.private], torch.arange(len(partners), device=partners.device)[:, None, None]
    inputs = torch.einsum("vbk,vbk...->vb...", own, data.inputs[rows, partners])
    if recipe.from_pool:
        drawn = _from_pool(pool, data.inputs, recipe.from_pool, streams)
        inputs = inputs + torch.einsum("vbk,vbk...->vb...", weights[..., recipe.private :], drawn)
    return Protected(
        inputs,
        torch.einsum("vbk,vbkc->vbc", own, labels[rows, partners]),
        data.origin[rows, partners].flatten(2),
        (own[..., None] * data.weights[rows, partners]).flatten(2),
    )


def draw_partners(count: int, *, size: int, streams: Streams, like: Tensor | None = None) -> Tensor:
    """Draw (V, B, count) images of the batch for each of its images: itself, then others, no one twice.

    Args:
        count: of them, the image itself included.
        size: B.
        streams: who is drawn.
        like: on whose device they are wanted; the CPU if None.

    Example:
        >>> draw_partners(3, size=3, streams=Streams().bind(2)).sort(-1).values[0].tolist()
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    if size < count:
        raise DataError(
            f"a mixture of {count} images of the batch needs as many, got {size}; lower k or raise from_pool"
        )
    scores = streams.uniform("mixing/partners", (size, size), like=like)
    scores.diagonal(dim1=1, dim2=2).fill_(-1.0)
    return scores.argsort(stable=True, dim=-1)[..., :count]


def draw_coefficients(recipe: Recipe, *, size: int, streams: Streams) -> Tensor:
    """Draw (V, B, k) coefficients that sum to 1; those outside the bounds are drawn again."""
    if recipe.k == 1:
        return torch.ones(len(streams.keys), size, 1)
    chosen, missing = torch.zeros(0), torch.ones(1, dtype=torch.bool)
    for number in range(_ROUNDS):
        tried = _draw(recipe, (size, _TRIES), streams.fork(f"coefficients-{number}"))
        fits = (tried.amax(-1) <= recipe.cap) & (_dominance(tried, recipe) >= recipe.floor * bool(recipe.from_pool))
        first = tried.gather(2, fits.int().argmax(2)[..., None, None].expand(-1, -1, 1, recipe.k)).squeeze(2)
        chosen = first if number == 0 else torch.where(missing[..., None], first, chosen)
        missing = ~fits.any(2) if number == 0 else missing & ~fits.any(2)
        if not bool(missing.any()):
            return chosen
    raise DataError(f"no coefficients up to {recipe.cap} came in {_ROUNDS * _TRIES} draws; raise cap or lower floor")


def secret_streams(streams: Streams) -> Streams:
    """Return streams for the same victims that nobody can repeat, keyed by the operating system."""
    return replace(streams, seed=secrets.randbits(128))


def secret_signs(shape: tuple[int, ...]) -> Tensor:
    """Draw fair signs of a shape from the operating system's cryptographic generator.

    Example:
        >>> secret_signs((2, 3)).abs().tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    count = int(np.prod(shape))
    bits = np.unpackbits(np.frombuffer(secrets.token_bytes(-(-count // 8)), dtype=np.uint8), count=count)
    return torch.from_numpy(bits.astype(np.float32)).view(shape) * 2 - 1


def _draw(recipe: Recipe, shape: tuple[int, ...], streams: Streams) -> Tensor:
    """Draw (V, *shape, k) coefficients that sum to 1, without bounds."""
    if recipe.rule == "power":
        raw = streams.normal("mixing/weights", (*shape, recipe.k)).double().abs() ** recipe.k
    else:
        # A Dirichlet draw is a normalized vector of gamma draws, and a gamma of 3 is the sum of three exponentials.
        exponential = -torch.log1p(-streams.uniform("mixing/weights", (*shape, recipe.k + 2)).double())
        raw = torch.cat([exponential[..., :3].sum(-1, keepdim=True), exponential[..., 3:]], -1)
    return raw / raw.sum(-1, keepdim=True)


def _dominance(weights: Tensor, recipe: Recipe) -> Tensor:
    return weights[..., : min(2, recipe.private)].sum(-1)


def _soft_labels(data: Protected, classes: int | None) -> Tensor:
    labels = data.labels
    if labels.ndim == 3:
        return labels
    if classes is None:
        raise DataError("labels are mixed too, which needs their number; set classes=K, or give soft labels (V, B, K)")
    if int(labels.max()) >= classes:
        raise DataError(f"labels must be below classes={classes}, got {int(labels.max())}; raise classes")
    return F.one_hot(labels, classes).to(data.inputs.dtype)


def _from_pool(pool: Tensor | None, inputs: Tensor, count: int, streams: Streams) -> Tensor:
    """Draw (V, B, count, C, H, W) images of the pool, no one twice in a mixture."""
    if pool is None or len(pool) < count:
        have = "none; give it one, or from_pool=0" if pool is None else f"one of {len(pool)}; give a larger one"
        raise DataError(f"{count} images of each mixture come from a pool, but the client has {have}")
    if pool.shape[1:] != inputs.shape[2:]:
        shapes = f"{tuple(inputs.shape[2:])} like the batch, got {tuple(pool.shape[1:])}"
        raise DataError(f"images of the pool must be {shapes}; resize them or choose another pool")
    chosen = streams.integers("mixing/pool", 2**62, (inputs.shape[1], count))
    return pool[_distinct(chosen, len(pool)).to(pool.device)].to(inputs)


def _distinct(drawn: Tensor, size: int) -> Tensor:
    """Turn large whole numbers (..., k) into k different ones below `size`: the j-th among those that are left."""
    taken: list[Tensor] = []
    for j in range(drawn.shape[-1]):
        number = drawn[..., j] % (size - j)
        for other in torch.stack([*taken, number], -1)[..., :-1].sort(-1).values.unbind(-1):
            number = number + (number >= other)
        taken.append(number)
    return torch.stack(taken, -1)
