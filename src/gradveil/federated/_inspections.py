"""Signs of malicious weights that show without any data."""

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from gradveil.federated._findings import Finding
from gradveil.types import State

_FEATURES: Final = 16  # rows of fewer entries are parallel by chance
_PARALLEL: Final = 0.98
_EQUAL: Final = 0.998
_SPREAD: Final = 0.2
_SAME_ROWS: Final = 3
_SAME_FILTERS: Final = 4
_SKETCH: Final = 64
_MIRRORED: Final = 0.01
_FAR_BIAS: Final = 30.0
_FEW_ENTRIES: Final = 1.5


def inspect_weights(state: State) -> Iterator[Finding]:
    """Look at every linear layer and convolution of a model.

    Args:
        state: parameters and buffers by name; a layer is what has a `.weight` of two axes or more.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            reason = "some numbers are not finite, so that no gradient can be averaged"
            yield Finding(kind="numbers", severity="malicious", where=name, reason=reason)
            continue
        if not name.endswith("weight") or tensor.ndim < 2 or not tensor.is_floating_point():
            continue
        bias = state.get(f"{name.removesuffix('weight')}bias")
        yield from inspect_layer(name.removesuffix(".weight"), tensor.detach().flatten(1).float(), bias, tensor.ndim)


def inspect_layer(where: str, rows: Tensor, bias: Tensor | None, axes: int) -> Iterator[Finding]:
    """Look at one layer.

    Args:
        where: its name.
        rows: (R, d) weights of each output.
        bias: (R,), None if there is none.
        axes: of the weight as it is stored; 2 for a linear layer.
    """
    if rows.shape[1] < _FEATURES:
        return
    yield from _same_rows(where, rows, bias, least=_SAME_ROWS if axes == 2 else _SAME_FILTERS)
    if axes > 2:
        return
    yield from _mirrored_rows(where, rows)
    yield from _fishing(where, rows, None if bias is None else bias.detach().float())


def _same_rows(where: str, rows: Tensor, bias: Tensor | None, *, least: int) -> Iterator[Finding]:
    """Imprint: many outputs measure the same quantity, and their biases cut it into bins."""
    equal, same = (_largest_bundle(rows, cosine) for cosine in (_EQUAL, _PARALLEL))
    if int(same.sum()) < least:
        return
    words = f"{int(same.sum())} of {len(rows)} outputs have the same weights up to a factor"
    spread = False
    if bias is not None:
        cuts = (-bias.detach().float()[same] / rows[same].norm(dim=1)).sort().values
        spread = bool(cuts.std() > _SPREAD * cuts.mean().abs())
        steps = int((cuts.diff() > 1e-6 * cuts.abs().max()).sum()) + 1
        words += f", with {steps} different thresholds, which sorts samples into bins and stores them one by one"
    # Outputs that learned the same thing are nearly parallel too, but then their thresholds agree as well.
    certain = spread or int(equal.sum()) >= least
    yield Finding(kind="imprint", severity="malicious" if certain else "suspicious", where=where, reason=words)


def _largest_bundle(rows: Tensor, cosine: float) -> Tensor:
    """Return (R,) which rows point into the most common direction."""
    lengths = rows.norm(dim=1, keepdim=True)
    unit = torch.where(lengths > 0, rows / lengths.clamp_min(1e-30), 0)
    sketch = unit
    if rows.shape[1] > 4 * _SKETCH:  # parallel rows stay parallel, and most others do not become so
        generator = torch.Generator().manual_seed(0)
        sketch = unit @ torch.randn(rows.shape[1], _SKETCH, generator=generator).to(rows)
        sketch = torch.nn.functional.normalize(sketch, dim=1)
    slack = (1 - cosine) / 2
    counts = torch.cat([(part @ sketch.T > cosine - slack).sum(1) for part in sketch.split(1024)])
    return unit @ unit[counts.argmax()] > cosine


def _mirrored_rows(where: str, rows: Tensor) -> Iterator[Finding]:
    """Trap weights: the positive half of a row is the negative half again, a little smaller (Boenisch et al. 2021)."""
    ordered = rows.sort(dim=1).values
    half = rows.shape[1] // 2
    negative, positive = -ordered[:, :half], ordered.flip(1)[:, :half]
    valid = (negative[:, -1] > 0) & (positive[:, -1] > 0)
    upper = max(half // 2, 2)
    ratio = (positive / negative.clamp_min(1e-30))[:, :upper]
    mirrored = valid & (ratio.std(1) < _MIRRORED * ratio.mean(1))
    if int(mirrored.sum()) * 2 < len(rows):
        return
    words = (
        f"the positive weights of {int(mirrored.sum())} of {len(rows)} outputs are their negative ones times "
        f"{float(ratio[mirrored].mean()):.3g}, so that each output answers to very few samples"
    )
    yield Finding(kind="trap-weights", severity="malicious", where=where, reason=words)


def _fishing(where: str, rows: Tensor, bias: Tensor | None) -> Iterator[Finding]:
    """Fishing: a head that lets the gradient of one class, or of one side of a feature, through (Wen et al. 2022)."""
    lengths = rows.norm(dim=1)
    used = lengths > 1e-8 * lengths.max().clamp_min(1e-30)
    if len(rows) > 2 and 0 < int(used.sum()) <= len(rows) // 2:
        words = f"{int((~used).sum())} of {len(rows)} outputs have no weights, which leaves the gradient to the others"
        yield Finding(kind="fishing", severity="malicious", where=where, reason=words)
    if int(used.sum()) > 1:
        squares = rows[used].square()
        entries = squares.sum(1).square() / squares.square().sum(1)
        if float(entries.max()) < _FEW_ENTRIES:
            words = "every output reads one feature alone, which splits the samples by that feature"
            yield Finding(kind="fishing", severity="malicious", where=where, reason=words)
    typical = float(lengths[used].median()) if bool(used.any()) else 0.0
    if bias is not None and typical > 0:
        largest = float((bias - bias.median()).abs().max())
        reach = _FAR_BIAS * max(typical, 1 / math.sqrt(rows.shape[1]))
        if largest > reach:
            words = (
                f"a bias lies {largest:.3g} away from the others, beside weights of length {typical:.3g}, "
                "which silences some outputs for all but chosen samples"
            )
            yield Finding(kind="fishing", severity="malicious", where=where, reason=words)
