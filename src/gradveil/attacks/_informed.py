"""What an adversary who knows the defenses makes of a trial update: likelihoods, masks, and features read exactly."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradveil.attacks._objectives import cosine_distance, unit
from gradveil.engine import over_victims
from gradveil.streams import Streams
from gradveil.types import Gradients, KnownDefense, Observation, State


@dataclass(frozen=True, slots=True)
class Judge:
    """How far a trial update is from an observed one, as known defenses see it.

    Args:
        target: the observed update; zero where a defense lets nothing through.
        masks: of the entries that a defense lets through.
        random: defenses with a likelihood.
        applied: the others, which are applied to the trial in their place among all of them.
        order: all that act on the update, in the order of the client.
        scale: of the update against a mean gradient.
        streams: for defenses that are applied again.
    """

    target: Gradients
    masks: Gradients
    random: tuple[KnownDefense, ...]
    applied: tuple[KnownDefense, ...]
    order: tuple[KnownDefense, ...]
    scale: float
    streams: Streams

    @classmethod
    def of(cls, observation: Observation, target: Gradients, *, scale: float, streams: Streams) -> Self:
        """Sort the known defenses by what they can tell about an observed update.

        Args:
            observation: of the defenses.
            target: the observed update as a mean gradient.
            scale: of the update against it.
            streams: of the adversary.
        """
        target = tuple(scale * tensor for tensor in target)
        known = observation.defenses or ()
        masks = tuple(torch.ones_like(tensor, dtype=torch.bool) for tensor in target)
        random, applied = [], []
        for defense in known:
            visible = defense.visible(target)
            masks = tuple(mask & seen for mask, seen in zip(masks, visible, strict=True))
            if _has_likelihood(defense, target):
                random.append(defense)
            elif all(bool(seen.all()) for seen in visible):
                # One that hides entries is undone by leaving them out; applied again it would hide others.
                applied.append(defense)
        shown = _keep(target, masks)
        return cls(shown, masks, tuple(random), tuple(applied), known, scale, streams.fork("defenses"))

    def surprise(self, trial: Gradients) -> Tensor:
        """Return (V,) minus the log likelihood of what was observed; log likelihoods of several defenses add."""
        current, total = tuple(self.scale * tensor for tensor in trial), trial[0].new_zeros(len(trial[0]))
        for defense in self.order:
            if defense in self.random:
                total = total - defense.log_likelihood(self.target, _keep(current, self.masks))
            elif defense in self.applied:
                current = defense.resample(current, streams=self.streams)
        return total

    def shown(self, trial: Gradients) -> Gradients:
        """Return what would be observed of a trial without the randomness of defenses, zero where they hide it."""
        current = tuple(self.scale * tensor for tensor in trial)
        for defense in self.applied:
            current = defense.resample(current, streams=self.streams)
        return _keep(current, self.masks)

    def direction(self) -> Callable[[Gradients], Tensor]:
        """Return the function that gives (V,) one minus the cosine over the visible entries."""
        goal = unit(self.target)
        return lambda trial: cosine_distance(_keep(trial, self.masks), goal)


def see_through(observation: Observation, images: Tensor) -> Tensor:
    """Apply what known defenses do to images, differentiably: (V, B, C, H, W) pixels to what the model saw."""
    for defense in observation.defenses or ():
        images = defense.forward(images)
    return images


def hidden_features(observation: Observation, judge: Judge) -> Callable[[Tensor], Tensor] | None:
    """Read what entered a layer that a defense hides altogether, from the update itself.

    The rows of a linear layer's gradient are multiples of what entered it, whatever the defense made of the factors;
    over the bias gradient they are it. This is exact for a batch of one.

    Returns:
        Pixels (V, 1, C, H, W) to the (V,) squared distance of their features from those that were read, over how much
        those vary; None where there is no such layer, or a batch of several.
    """
    path = _hidden_linear(observation, judge.masks)
    # In train mode batch norm makes features of its own, which differ from those that are read.
    if path is None or observation.input_shape[0] > 1 or observation.mode == "train":
        return None
    weight, bias = (observation.update[observation.names.index(f"{path}.{kind}")] for kind in ("weight", "bias"))
    squares = bias.square().sum(1, keepdim=True).clamp_min(torch.finfo(bias.dtype).tiny)
    read = (weight * bias[:, :, None]).sum(1) / squares
    size = (read - read.mean(1, keepdim=True)).square().sum(1).clamp_min(torch.finfo(bias.dtype).tiny)

    def distance(images: Tensor) -> Tensor:
        return (entering(observation, images, path).squeeze(1) - read).square().sum(1) / size

    return distance


def entering(observation: Observation, images: Tensor, path: str) -> Tensor:
    """Return (V, B, d), what enters a linear layer when the networks run on pixels (V, B, C, H, W)."""
    model, own = observation.model.eval(), {**(observation.parameters or {}), **(observation.buffers or {})}
    if not own:
        flat = features_entering(model, {}, images.flatten(0, 1), path)
        return flat.view(*images.shape[:2], -1)

    def of_victim(state: State, inputs: Tensor) -> Tensor:
        return features_entering(model, state, inputs, path)

    return over_victims(of_victim, own, images)


def features_entering(model: nn.Module, state: State, inputs: Tensor, path: str) -> Tensor:
    """Return (B, d), what enters a linear layer when one network runs on pixels (B, C, H, W)."""
    found: list[Tensor] = []
    layer = model.get_submodule(path)
    handle = layer.register_forward_pre_hook(lambda _layer, arguments: found.append(arguments[0]))
    try:
        functional_call(model, dict(state), (inputs,))
    finally:
        handle.remove()
    return found[0].flatten(1)


def _hidden_linear(observation: Observation, masks: Gradients) -> str | None:
    """Return the path of the first linear layer with bias of which no entry is visible."""
    hidden = {name for name, mask in zip(observation.names, masks, strict=True) if not bool(mask.any())}
    layers = [path for path, layer in observation.model.named_modules() if isinstance(layer, nn.Linear)]
    return next((path for path in layers if {f"{path}.weight", f"{path}.bias"} <= hidden), None)


def _has_likelihood(defense: KnownDefense, update: Gradients) -> bool:
    try:
        defense.log_likelihood(update, update)
    except NotImplementedError:
        return False
    return True


def _keep(update: Gradients, masks: Gradients) -> Gradients:
    return tuple(tensor * mask for tensor, mask in zip(update, masks, strict=True))
