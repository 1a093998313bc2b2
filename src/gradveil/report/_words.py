"""Numbers and names of records in words that people read."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gradveil.report._verdicts import VERDICT_METRICS, VERDICT_VIEWS, preferred
from gradveil.report.tables import Row

NULL_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "grey": "grey",
        "own-mean": "own mean colour",
        "mean-image": "mean image",
        "other-of-class": "other of the class",
        "random-gradient": "random gradient",
    }
)

KNOWLEDGE: Mapping[str, str] = MappingProxyType(
    {
        "labels": "the labels of the private images",
        "buffers": "the batch-normalization statistics that the client sends back",
        "local-training": "how the client trains (optimizer, steps, learning rate)",
        "defenses": "which defenses are in use, and their settings",
        "auxiliary": "public data of the same kind",
        "encoding": "how the private data are encoded",
    }
)


def number(value: float | None, *, unit: str = "", decimals: int | None = None) -> str:
    """Write a score: two decimals with a unit, three without, two digits if it is small, a dash if it is missing.

    Example:
        >>> number(12.3456, unit="dB"), number(0.5), number(0.00012), number(None)
        ('12.35', '0.500', '0.00012', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    small = decimals is None and not unit and 0 < abs(value) < 0.001
    places = (2 if unit else 3) if decimals is None else decimals
    return (f"{value:.2g}" if small else f"{value:.{places}f}").replace("-", "−")


def printed(value: float | None, *, unit: str = "") -> str:
    """Write a number as a paper prints it, with its unit; a dash if the paper has none.

    Example:
        >>> printed(6.579, unit="dB"), printed(0.92), printed(None, unit="dB")
        ('6.579 dB', '0.92', '–')
    """
    return "–" if value is None else f"{value:g} {unit}".strip()


def significant(value: float) -> str:
    """Write a number of any size to three digits.

    Example:
        >>> significant(0.12345), significant(1234567.0), significant(math.inf)
        ('0.123', '1.23e+06', '∞')
    """
    return "∞" if value == math.inf else f"{value:.3g}".replace("nan", "–")


def percent(value: float | None) -> str:
    """Write a share.

    Example:
        >>> percent(0.934)
        '93.4%'
    """
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def threshold(value: float | None, *, unit: str = "", higher_is_better: bool = True) -> str:
    """Write what a score must reach.

    Example:
        >>> threshold(20.0, unit="dB"), threshold(0.5, higher_is_better=False), threshold(None)
        ('≥ 20 dB', '≤ 0.5', '–')
    """
    return "–" if value is None else f"{'≥' if higher_is_better else '≤'} {value:g} {unit}".strip()


def moment(date: str) -> str:
    """Write an ISO date of UTC to the minute, or leave it as it is.

    Example:
        >>> moment("2026-11-16T04:50:12+00:00")
        '2026-11-16 04:50 UTC'
    """
    day, _, time = date.partition("T")
    return f"{day} {time[:5]} UTC" if date.endswith("+00:00") else date


def spaced(spec: str) -> str:
    """Let a spec string break where its settings begin.

    Example:
        >>> spaced("dlg:steps=9,lr=1")
        'dlg: steps=9, lr=1'
    """
    return spec.replace(":", ": ").replace(",", ", ")


def reading(title: str, name: str) -> str:
    """Name a metric with its settings, which tell two readings of one metric apart.

    Example:
        >>> reading("SSIM", "ssim:padding=zeros"), reading("PSNR", "psnr")
        ('SSIM, padding=zeros', 'PSNR')
    """
    settings = name.partition(":")[2]
    return f"{title}, {spaced(settings)}" if settings else title


def labels(row: Row) -> str:
    """Say what the attack learned of the labels.

    Returns:
        `granted`, a share, or a dash where it guessed none.
    """
    return "granted" if row.labels_granted else percent(row.label_accuracy)


def outcome(row: Row) -> str:
    """Say how a cell ended, in two or three words; never that it is safe."""
    if row.error:
        return "failed"
    if row.verdict is None:
        return "undecided"
    return "LEAKS" if row.verdict.leaks else "no leak shown"


def short(row: Row) -> str:
    """Say on how many updates the search stopped short."""
    return f"the search stopped short on {row.short} of {row.victims} updates"


def first_score(row: Row) -> str:
    """Write the mean of the first metric of the verdict, with its name and unit."""
    names = preferred(row.metrics, VERDICT_METRICS)
    if not names:
        return "–"
    metric = row.metrics[names[0]]
    return f"{metric.title} {number(metric.summary.mean, unit=metric.unit)} {metric.unit}".strip()


def first_rate(row: Row) -> str:
    """Write the share of private images found first, in the view of the verdict."""
    views = preferred(row.identification, VERDICT_VIEWS)
    return percent(row.identification[views[0]].rate) if views else "–"


def null_label(name: str) -> str:
    """Name a null guess.

    Example:
        >>> null_label("own-mean"), null_label("my-null")
        ('own mean colour', 'my-null')
    """
    return NULL_LABELS.get(name, name)


def cells(numbers: Sequence[int], total: int) -> str:
    """Name cells by number; nothing is said of the only cell there is.

    Example:
        >>> cells([1, 2], 2), cells([2], 3), cells([1, 2, 3, 5], 6)
        ('all cells', 'cell 2', 'cells 1–3, 5')
    """
    if len(numbers) == total:
        return "all cells" if total > 1 else ""
    ranges: list[list[int]] = []
    for cell in numbers:
        if ranges and cell == ranges[-1][-1] + 1:
            ranges[-1].append(cell)
        else:
            ranges.append([cell])
    named = [f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges]
    return f"cell{'s' if len(numbers) > 1 else ''} {', '.join(named)}"


def capital(text: str) -> str:
    """Begin a sentence.

    Example:
        >>> capital("the best of 16")
        'The best of 16'
    """
    return text[:1].upper() + text[1:]
