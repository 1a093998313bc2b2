"""Searching for an image and a shift together, through what a policy did to it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil.attacks._matching import Plan
from gradveil.attacks._objectives import distance_to
from gradveil.attacks._policy_lens import KnownPolicy, Lens, variant_lens
from gradveil.attacks._priors import total_variation
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Adam, Minimum, Runtime, Variable, matching, minimize
from gradveil.streams import Streams
from gradveil.types import Observation, Reconstruction


def search(
    seen: Observation, lens: Lens, plan: Plan, *, images: Tensor, shifts: Tensor, runtime: Runtime, rate: float = 1.0
) -> Minimum:
    """Match gradients by images and shifts, both with Adam; only the images' gradient is reduced to its sign.

    Total variation and box are those of the image before the shift.

    Args:
        seen: with labels.
        lens: between image and model.
        plan: steps, lr, decay, tv, signed, boxed.
        images: (V, B, C, H, W) standardized, to start from.
        shifts: (V, B, 2) to start from.
        runtime: precision and the like.
        rate: step size of the shift over that of the image.
    """
    match, labels = matching(seen, precision=runtime.precision), seen.labels
    assert labels is not None
    distance = distance_to(match.target, plan.objective)

    def objective(values: tuple[Tensor, ...]) -> Tensor:
        image, shift = values
        return distance(match.factors(lens.see(image, rate * shift), labels)) + plan.tv * total_variation(image)

    low, high = lens.space.box() if plan.boxed else (None, None)
    found = minimize(
        objective,
        [
            Variable(start=images, signed=plan.signed, low=low, high=high),
            # Adam moves by its step size whatever the scale of a gradient: a scaled variable has its own step size.
            Variable(start=shifts / rate, low=-lens.limits / rate, high=lens.limits / rate),
        ],
        optimizer=Adam(lr=plan.lr),
        steps=plan.steps,
        decay=plan.decay,
        runtime=runtime,
    )
    return replace(found, values=(found.values[0], rate * found.values[1]))


def reconstruction(found: Minimum, seen: Observation, lens: Lens) -> Reconstruction:
    """Write a minimum as a guess of the private image, of what the model saw, and of the shift between them."""
    images, shifts = found.values
    return Reconstruction(
        inputs=lens.space.pixels(images).clamp(0, 1),
        labels=seen.labels,
        protected=lens.show(images, shifts),
        objective=found.objective,
        diverged=found.diverged,
        steps=found.steps,
        trace=found.trace,
        captured=found.captured,
        details={"shift": shifts},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """How the variants of a policy are tried.

    Args:
        steps: in which all of them are compared; 0 gives all of them the whole search.
        kept: how many of each victim go on after that.
        crop: whether the place of the client's crop is searched for too.
    """

    steps: int
    kept: int
    crop: bool


def search_variants(
    seen: Observation,
    policy: KnownPolicy,
    plan: Plan,
    *,
    images: Tensor,
    screening: Screening,
    streams: Streams,
    runtime: Runtime,
    rate: float = 1.0,
) -> Reconstruction:
    """Try every variant of a policy as a further victim, for a few steps; go on with the best, and keep the best.

    Args:
        seen: with labels, one image per victim; a victim's restarts follow each other.
        policy: that is known.
        plan: of the whole search.
        images: (V, 1, C, H, W) standardized, to start from.
        screening: how the variants are tried.
        streams: one per victim and restart.
        runtime: precision and the like.
        rate: step size of the shift over that of the image.
    """
    count, kept, tries = len(policy.variants().codes), screening.kept, plan.restarts
    chosen, stack = torch.arange(count).repeat(seen.victims), seen.repeat(count)
    images = images.repeat_interleave(count, 0)
    lens = variant_lens(stack, policy, chosen, crop=screening.crop)
    shifts = lens.starts(streams, tries).repeat_interleave(count, 0)
    tries *= count
    if screening.steps > 0 and tries > kept:
        brief, named = replace(plan, steps=min(screening.steps, plan.steps)), runtime.named("screen")
        screened = search(stack, lens, brief, images=images, shifts=shifts, runtime=named, rate=rate)
        rows = best_of(screened.objective, tries, kept=kept)
        stack, chosen, tries = stack.select(rows.tolist()), chosen[rows.cpu()], kept
        images, shifts = (value[rows] for value in screened.values)
        lens = variant_lens(stack, policy, chosen, crop=screening.crop)

    found = search(stack, lens, plan, images=images, shifts=shifts, runtime=runtime, rate=rate)
    codes, signs = (each[chosen].to(seen.device) for each in policy.variants())
    guess = reconstruction(found, stack, lens)
    details = {**guess.details, "variant": chosen.to(seen.device), "operations": codes, "signs": signs}
    return keep_best(replace(guess, details=details), tries)


def best_of(objective: Tensor, tries: int, *, kept: int) -> Tensor:
    """Return the rows of each victim's best tries, best first: (V * tries,) objectives to (V * kept,) rows.

    Example:
        >>> best_of(torch.tensor([3.0, 1.0, 2.0, torch.nan, 5.0, 4.0]), 3, kept=2).tolist()
        [1, 2, 5, 4]
    """
    scores = torch.nan_to_num(objective, nan=torch.inf).view(-1, tries)
    order = scores.argsort(dim=1, stable=True)[:, :kept]
    return (order + torch.arange(len(order), device=order.device)[:, None] * tries).flatten()
