"""Mixup."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from gradveil.defenses._base import Adversary, DataDefense
from gradveil.defenses._mixing import Randomness, Recipe, Rule, mix, secret_streams
from gradveil.streams import Streams
from gradveil.types import Card, Paper, Protected


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mixup(DataDefense):
    """Train on mixtures of k images, and of their labels, in place of the images themselves.

    Every step mixes anew. Protects each image by the k - 1 others that cover it, and only as long as few mixtures of it
    are seen: as many mixtures as images give all of them away by linear regression.

    Args:
        k: images of a mixture, 2 to 8; 1 switches the defense off.
        classes: number of classes, for labels that are mixed without a client, who makes them soft before.
        rule: of the coefficients, `power` or `dirichlet`.
        cap: no coefficient is above it.
        from_pool: how many of the k images come from the client's pool, own or public, whose labels do not count.
        floor: what the first two images of the batch hold together at least, where a pool is used.
        randomness: `seeded` for audits, `secret` for real use.
    """

    paper: ClassVar[Paper | None] = Paper(
        title="mixup: Beyond Empirical Risk Minimization",
        authors="Zhang, Cisse, Dauphin, Lopez-Paz",
        year=2017,
        url="https://arxiv.org/abs/1710.09412",
    )
    adversary: ClassVar[Adversary] = Adversary(
        reason="mixtures of several steps are recovered and decoded together, by decode-mixing in gradveil.decoding; "
        "no attack on a single update undoes them",
    )
    soft_labels: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        fails="an adversary who sees several mixtures of an image: from as many as there are images, linear regression "
        "gives all of them back",
        costs="k images are read for each one trained on, and accuracy, more with larger k",
        suggested="k from 4 to 6, cap 0.65, randomness=secret in use",
        interacts="needs a batch, or a batch and a pool, of at least k images; labels become soft, so that attacks "
        "that read hard labels fail",
    )
    off: ClassVar[Mapping[str, object] | None] = {"k": 1, "from_pool": 0}

    k: int = 4
    classes: int | None = None
    rule: Rule = "dirichlet"
    cap: float = 0.65
    from_pool: int = 0
    floor: float = 0.3
    randomness: Randomness = "seeded"

    def __post_init__(self) -> None:
        _ = self.recipe

    @property
    def recipe(self) -> Recipe:
        """What the mixtures are made by."""
        return Recipe(
            k=self.k,
            rule=self.rule,
            cap=self.cap,
            from_pool=self.from_pool,
            floor=self.floor,
            classes=self.classes,
            randomness=self.randomness,
        )

    @override
    def protect(self, data: Protected, *, pool: Tensor | None, streams: Streams) -> Protected:
        if self.k == 1:
            return data
        drawn = secret_streams(streams) if self.randomness == "secret" else streams.fork("mixup")
        return mix(data, self.recipe, pool=pool, streams=drawn)
