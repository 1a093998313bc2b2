"""Picture grids: the private image, what the model saw, and the reconstruction, the worst for privacy first."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from gradveil.record import Record
from gradveil.report._verdicts import VERDICT_METRICS, VERDICT_VIEWS, preferred
from gradveil.report._words import number, significant

SHOWN, MOST = 16, 64
"""Samples shown at once, and at most, per cell."""

PIXELATED, LARGEST = 64, 128
"""Images up to the first side are embedded exactly, as PNG; larger ones as JPEG of at most the second side."""

FEW = 4
"""Numbers of a detail that are shown below a picture."""

_COLUMNS = {"private": "private", "protected": "model saw", "guess": "reconstruction"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One embedded image.

    Args:
        title: of its column.
        uri: the data.
        alt: for readers who cannot see it.
        width: in pixels.
        height: in pixels.
    """

    title: str
    uri: str
    alt: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One sample.

    Args:
        name: victim, sample and class.
        pictures: up to three.
        scores: in words.
        identified: whether the private image is the nearest of all candidates.
    """

    name: str
    pictures: tuple[Picture, ...]
    scores: tuple[str, ...]
    identified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The samples of one cell.

    Args:
        first: shown at once.
        rest: shown on request.
        left_out: how many further samples are in the record only.
        pixelated: whether pixels are small enough to be enlarged.
    """

    first: tuple[Card, ...]
    rest: tuple[Card, ...]
    left_out: int
    pixelated: bool


def grid(record: Record, images: Mapping[str, npt.NDArray[np.uint8]]) -> Grid | None:
    """Lay out the samples of a cell; identified ones come first, then the closest.

    Where nobody knows the private images, as of recorded updates, the guesses stand alone in their order.

    Args:
        record: the cell.
        images: (V, B, C, H, W) bytes by name; may cover fewer victims than the record.

    Returns:
        None if there are no images to show.
    """
    arrays = {name: images[name] for name in _COLUMNS if name in images and images[name].ndim == 5}
    whole = arrays.get("private", arrays.get("guess"))
    if whole is None or record.status != "done":
        return None
    order = [place for place in _worst_first(record) if place[0] < len(whole)] if record.labels else _all_of(whole)
    cards = [_card(record, arrays, *place) for place in order[:MOST]]
    return Grid(
        first=tuple(cards[:SHOWN]),
        rest=tuple(cards[SHOWN:]),
        left_out=max(0, len(order) - MOST),
        pixelated=max(whole.shape[-2:]) <= PIXELATED,
    )


def data_uri(image: npt.NDArray[np.uint8]) -> str:
    """Embed one (C, H, W) image; one channel is grey, three are colours, any other number is averaged.

    Example:
        >>> data_uri(np.zeros((1, 8, 8), dtype=np.uint8))[:22]
        'data:image/png;base64,'
    """
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    if len(image) not in (1, 3):
        pixels = image.mean(axis=0).round().astype(np.uint8)
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    exact = max(picture.size) <= PIXELATED
    if not exact:
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG" if exact else "JPEG", optimize=True, quality=85)
    return f"data:image/{'png' if exact else 'jpeg'};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _all_of(images: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """List (victim, sample) in order."""
    return [(victim, sample) for victim, sample in np.ndindex(images.shape[:2])]


def _worst_first(record: Record) -> list[tuple[int, int]]:
    """List (victim, sample), identified ones first, then by closeness in the first metric of the verdict."""
    ranks, closeness = _ranks(record), _closeness(record)
    places = list(np.ndindex(len(record.labels), len(record.labels[0]) if record.labels else 0))
    return sorted(((v, b) for v, b in places), key=lambda place: (ranks[place] > 0, -closeness[place]))


def _ranks(record: Record) -> npt.NDArray[np.float64]:
    views = preferred(record.identification, VERDICT_VIEWS)
    return np.asarray(record.identification[views[0]].ranks) if views else np.ones(np.shape(record.labels))


def _closeness(record: Record) -> npt.NDArray[np.float64]:
    names = preferred(record.scores, VERDICT_METRICS)
    if not names:
        return np.zeros(np.shape(record.labels))
    scores = record.scores[names[0]]
    values = np.nan_to_num(np.asarray(scores.private, dtype=np.float64), nan=-np.inf)
    return values if scores.higher_is_better else -values


def _card(record: Record, arrays: Mapping[str, npt.NDArray[np.uint8]], victim: int, sample: int) -> Card:
    name = _class(record, victim, sample)
    pictures = []
    for column, array in arrays.items():
        if victim < len(array) and sample < array.shape[1]:
            image = array[victim, sample]
            alt = ", ".join((_COLUMNS[column], f"victim {victim + 1}", *name))
            height, width = image.shape[-2:]
            pictures.append(Picture(title=_COLUMNS[column], uri=data_uri(image), alt=alt, width=width, height=height))
    several = next(iter(arrays.values())).shape[1] > 1
    place = f"victim {victim + 1}" + (f", sample {sample + 1}" if several else "")
    return Card(
        name=" · ".join((place, *name)),
        pictures=tuple(pictures),
        scores=_scores(record, victim, sample),
        identified=bool(record.identification) and bool(_ranks(record)[victim, sample] == 0),
    )


def _class(record: Record, victim: int, sample: int) -> tuple[str, ...]:
    """Name the class of a sample, where it is known."""
    if not record.labels:
        return ()
    label = record.labels[victim][sample]
    return (record.classes[label] if 0 <= label < len(record.classes) else f"class {label}",)


def _scores(record: Record, victim: int, sample: int) -> tuple[str, ...]:
    words = []
    for name in preferred(record.scores, VERDICT_METRICS):
        scores = record.scores[name]
        words.append(f"{scores.title} {number(scores.private[victim][sample], unit=scores.unit)} {scores.unit}".strip())
    for view in preferred(record.identification, VERDICT_VIEWS)[:1]:
        found = record.identification[view]
        words.append(f"rank {found.ranks[victim][sample] + 1:g} of {found.decoys + 1:,}")
    return (*words, *_found_out(record, victim))


def _found_out(record: Record, victim: int) -> list[str]:
    """Write what the attack learned of one victim beside its images, where it is a few numbers."""
    found = record.outcome.details | record.outcome.certificate
    own = {name: np.asarray(values[victim], dtype=np.float64).reshape(-1) for name, values in found.items()}
    return [
        f"{name} {', '.join(significant(float(value)) for value in values)}"
        for name, values in own.items()
        if 0 < values.size <= FEW
    ]
