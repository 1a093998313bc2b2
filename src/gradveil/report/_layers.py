"""How large gradients are against what a defense did to them, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradveil.record import Record
from gradveil.report._words import significant

COLOURS = ("green", "white", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of one cell.

    Args:
        name: module path.
        ratios: of its parameters, in words: the median victim, and the smallest and largest in brackets.
        region: green, white or red.
    """

    name: str
    ratios: str
    region: str


def layers(record: Record) -> tuple[Layer, ...]:
    """List the layers that a defense changed, in the order of the network."""
    return tuple(
        Layer(name=name, ratios=", ".join(_ratios(record, name)), region=colour)
        for name, colour in record.regions.items()
    )


def tally(found: Sequence[Layer]) -> str:
    """Count layers by region, in words.

    Example:
        >>> tally([Layer(name="fc", ratios="", region="red"), Layer(name="conv", ratios="", region="red")])
        '2 red'
    """
    counts = {colour: sum(layer.region == colour for layer in found) for colour in COLOURS}
    return ", ".join(f"{count} {colour}" for colour, count in counts.items() if count)


def _ratios(record: Record, layer: str) -> list[str]:
    own = {name: values for name, values in record.ratios.items() if (name.rpartition(".")[0] or name) == layer}
    return [f"{name.rpartition('.')[2]} {_spread(values)}" for name, values in own.items()]


def _spread(values: Sequence[float]) -> str:
    low, high = (significant(float(bound(values))) for bound in (np.min, np.max))
    middle = significant(float(np.median(values)))
    return middle if low == high else f"{middle} ({low} to {high})"
