"""What obscuring a whole set took, and what it reached."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil.data import Split
from gradveil.defenses._obscuring import draw_start, image_streams, objective
from gradveil.engine import Runtime, Store
from gradveil.obscuring._study import Study, decibels
from gradveil.record import Run, about_this_run
from gradveil.streams import Streams

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Obscured:
    """A set that was obscured.

    Args:
        images: how many.
        taken_over: stacks that an earlier run had finished; `run.seconds` is the whole time only where it is 0.
        lowered: share of images whose objective (Eq. 4) is lower at the end than at the start.
        mean_psnr: of obscured against private images, in decibels.
        worst_psnr: of the image that is hidden least.
        run: date, seconds, device, versions.
    """

    images: int
    taken_over: int
    lowered: float
    mean_psnr: float
    worst_psnr: float
    run: Run


def obscure_and_measure(study: Study) -> tuple[Split, Obscured]:
    """Obscure the private set of a study, and say how long it took and what came of it."""
    runtime = study.runtime or Runtime(precision="float32")
    store = None if runtime.store is None else _Counting(runtime.store)
    began = time.monotonic()
    seen = replace(study, runtime=replace(runtime, store=store)).obscured()
    seconds = time.monotonic() - began
    hidden = decibels(seen, study.private.train)
    return seen, Obscured(
        images=len(seen),
        taken_over=0 if store is None else store.found,
        lowered=float(_lowered(study, seen).double().mean()),
        mean_psnr=float(hidden.mean()),
        worst_psnr=float(hidden.max()),
        run=about_this_run(seconds={"obscuring": seconds}, chunk=0, device=torch.device(study.device)),
    )


@torch.no_grad()
def _lowered(study: Study, seen: Split) -> Tensor:
    """Return (N,), whether the objective fell."""
    pool = None if study.pool is None else study.pool.to(study.device)
    sample = study.private.train.inputs(range(1)).to(study.device)
    features, c = study.defense.features(sample), study.defense.descent.c
    fell = []
    for first in range(0, len(seen), _AT_ONCE):
        rows = range(first, min(first + _AT_ONCE, len(seen)))
        private, end = (split.inputs(rows).to(study.device) for split in (study.private.train, seen))
        start = draw_start(private, pool, image_streams(private, Streams(seed=study.seed)))
        before, after = (objective(images, private, features, c=c) for images in (start, end))
        fell.append((after < before).cpu())
    return torch.cat(fell)


@dataclass(slots=True)
class _Counting:
    """A store that counts what it had."""

    store: Store
    found: int = 0

    def load(self, name: str) -> dict[str, Tensor] | None:
        kept = self.store.load(name)
        self.found += kept is not None
        return kept

    def save(self, name: str, state: dict[str, Any]) -> None:
        self.store.save(name, state)
