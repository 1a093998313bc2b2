"""Fishing for user data in large-batch federated learning."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from gradveil.attacks._active import ActiveAttack
from gradveil.attacks._descent import Search, descend
from gradveil.attacks._fished import Cut, before_last, check_before, count_caught, last_linear
from gradveil.attacks._objectives import distance_to
from gradveil.attacks._priors import ImageSpace, total_variation
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Runtime, matching
from gradveil.errors import UnsupportedModelError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Card, Observation, Paper, Reconstruction, State


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fishing(ActiveAttack):
    """Rewrite the last layer so that one sample of a batch makes the whole gradient of what comes before it.

    By `class`: no sample but those of the target class reaches the earlier layers. By `feature`, for batches of one
    class: nor does a sample whose feature lies above a threshold, at first the quantile 1 / B of auxiliary images,
    which leaves one sample for about two batches in five. Further `queries` of the same client halve the interval of
    thresholds that can leave one. `caught` among the details says how many samples were left at last; with one, the
    guess is that sample, and the rest of the batch stays grey.

    Args:
        by: `class` or `feature`.
        target: class to fish for; of a batch of one class, that class.
        queries: how often the client is asked, by `feature`; each victim by a threshold of its own.
        feature: number of the feature that is cut at a threshold; None takes the one that varies most.
        sharpness: of the threshold: the logit of a sample one standard deviation of the feature away from it.
        steps: of signed Adam.
        lr: its step size, in standardized pixels.
        tv: weight of total variation.
        restarts: starts tried side by side.
    """

    paper: ClassVar[Paper] = Paper(
        title="Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification",
        authors="Wen, Geiping, Fowl, Goldblum, Goldstein",
        year=2022,
        url="https://arxiv.org/abs/2202.00580",
    )
    threat: ClassVar[str] = "F"
    batches: ClassVar[str] = "any; one sample comes out"
    whole: ClassVar[bool] = False
    card: ClassVar[Card] = Card(
        fails="where the target class has no sample or several in the batch, which `caught` shows; by feature, where "
        "the batch holds other classes or auxiliary images do not resemble it",
        costs="the queries, and then the search of a batch of one: two backward passes per step and restart",
        suggested="a class that is rare among clients; by=feature with queries=16 and auxiliary images of the client's "
        "class",
        interacts="clipping of single samples, and noise, since one sample is 1 / B of the update; a client that "
        "draws a new batch per query or answers but once; clients that look "
        "at the last layer see rows of zeros and a huge bias; several local steps repair the layer",
    )

    by: Literal["class", "feature"] = "class"
    target: int = 0
    queries: int = 1
    feature: int | None = None
    sharpness: float = 300.0
    steps: int = 4800
    lr: float = 0.1
    tv: float = 1e-4
    restarts: int = 1

    def __post_init__(self) -> None:
        self._search()
        for name in ("target", "feature", "tv"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.sharpness <= 0:
            raise ValueError(f"sharpness must be above 0, got {self.sharpness}")
        if self.queries < 1:
            raise ValueError(f"queries must be at least 1, got {self.queries}")
        if self.queries > 1 and self.by == "class":
            raise ValueError(f"queries must be 1 by class, where every query says the same, got {self.queries}")

    @override
    def poison(
        self,
        model: nn.Module,
        *,
        input_shape: tuple[int, int, int, int],
        auxiliary: Auxiliary | None,
        streams: Streams,
    ) -> nn.Module:
        changed = copy.deepcopy(model)
        path = last_linear(changed)
        check_before(changed, path)
        layer = changed.get_submodule(path)
        assert isinstance(layer, nn.Linear)
        if self.target >= layer.out_features:
            raise UnsupportedModelError(f"the last layer has {layer.out_features} classes; got target {self.target}")
        row, own, others = torch.full((layer.in_features,), 0.5), 0.0, 1000.0
        if self.by == "feature":
            cut = self._cut(changed, path, auxiliary, input_shape[0])
            slope = self.sharpness * cut.slope
            row, own, others = slope * (torch.arange(layer.in_features) == cut.feature), -slope * cut.threshold, 0.0
        with torch.no_grad():
            layer.weight.zero_()[self.target] = row.to(layer.weight)
            layer.bias.fill_(others)[self.target] = own
        return changed

    @override
    def poison_again(self, history: Sequence[Observation], *, auxiliary: Auxiliary | None) -> State:
        first, path = history[0], last_linear(history[0].model)
        cut = self._cut(first.model, path, auxiliary, first.input_shape[0])
        sent = first.model.get_parameter(f"{path}.bias").detach()
        biases = [(seen.parameters or {}).get(f"{path}.bias", sent.expand(seen.victims, -1)) for seen in history]
        slope = self.sharpness * cut.slope
        asked = [-bias[:, self.target] / slope for bias in biases]
        following = cut.narrowed(asked, [count_caught(seen, path, self.target) for seen in history])
        column = torch.arange(len(sent), device=sent.device) == self.target
        return {f"{path}.bias": torch.where(column, -slope * following[:, None].to(sent), sent)}

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        path, batch = last_linear(observation.model), observation.input_shape[0]
        caught = count_caught(observation, path, self.target)
        alone = before_last(observation, path, self.target).repeat(self.restarts)
        streams = streams.repeat(self.restarts)
        space, trials = ImageSpace.of(alone), matching(alone, precision=runtime.precision)
        distance = distance_to(trials.target, "cosine")

        def objective(images: Tensor, labels: Tensor) -> Tensor:
            return distance(trials.factors(space.pixels(images), labels)) + self.tv * total_variation(images)

        found = keep_best(descend(alone, objective, self._search(), streams=streams, runtime=runtime), self.restarts)
        one = torch.where((caught > 0.5).view(-1, 1, 1, 1, 1), found.inputs, 0.5)
        grey = torch.full_like(one, 0.5).expand(-1, batch - 1, -1, -1, -1)
        return replace(found, inputs=torch.cat([one, grey], 1), labels=None, details={"caught": caught})

    def _cut(self, model: nn.Module, path: str, auxiliary: Auxiliary | None, size: int) -> Cut:
        return Cut.of(model, path, auxiliary, share=1 / size, feature=self.feature)

    def _search(self) -> Search:
        return Search(steps=self.steps, lr=self.lr, restarts=self.restarts)
