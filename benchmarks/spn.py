"""Secret polarization network: does a larger weight protect more, what does it cost, and who sees through it?

GRADVEIL_DATA=... python benchmarks/spn.py --out results/spn --parts batch-1 batch-4 batch-8
GRADVEIL_DATA=... python benchmarks/spn.py --out results/spn --parts accuracy-mnist accuracy-cifar10

Attacks: DLNet (the LeNet of four convolutions, uniform ±0.3), CIFAR-10, the paper's eight values of alpha2 and none,
all in one stack and from the same starts; DLG without labels, and `surrogate-head`, who knows the construction. rMSE
after assignment, sample by sample, at most that of the data set's mean image. Two correlations with alpha2 are given:
of the median rMSE, which still moves where all but a few samples are at their caps, since these differ; and of the
median of what each sample's rMSE is of its own cap, which is 1 there. DLG starts at grey: what a batch of four or eight
does not determine stays as it began, and noise that stays is worse than the mean image (the paper starts at a pattern).

Accuracy: ten clients with equal shares, FedAvg, one local epoch a round, Adam 1e-3 and batches of 32 as in the paper's
Table 2, with SPN at alpha2 = 0.1 and without. The interval is Student's, of the paired differences over all seeds in
the file; processes with a seed each (`--seeds 1`) may write to one file.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from cells import Book, books, parser_of, summary
from scipy.stats import spearmanr, t
from torch import Tensor, nn

from gradveil import Batch, Federation, Knowledge, Observation, Runtime, Streams, data, federate, normalized, observe
from gradveil.attacks import DLG, SurrogateHead
from gradveil.defenses import SPN, Defense
from gradveil.federated.partition import partition
from gradveil.metrics import PSNR, RMSE, align, arrange
from gradveil.models import build
from gradveil.types import LocalTraining

ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 0.2, 0.3, 0.4, 0.5)
PARTS = ("batch-1", "batch-4", "batch-8", "accuracy-mnist", "accuracy-cifar10")
NETWORK = "lenet:convolutions=4,init=uniform-0.3"
ROUNDS = {"mnist": 40, "cifar10": 120}
POINTS = {"mnist": 0.5, "cifar10": 3.0}  # that may be lost


def main() -> None:
    parser = parser_of(PARTS, out=Path("results/spn"))
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150, help="of DLG, 20 iterations each")
    parser.add_argument("--start", default="zeros", choices=("pattern", "zeros", "smooth", "normal"))
    parser.add_argument("--restarts", type=int, default=1, help="of DLG")
    parser.add_argument("--informed-steps", type=int, default=2400)
    parser.add_argument(
        "--informed", nargs="*", type=float, default=[0.1, 0.5], help="alpha2 of surrogate-head's cells"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the federations")
    parser.add_argument("--rounds", type=int, default=None, help="of the federations, if not those below")
    parser.add_argument("--images", type=int, default=20_000, help="of the training split")
    chosen = parser.parse_args()
    for book in books(chosen):
        kind, _, which = str(book.spec["part"]).partition("-")
        if kind == "batch":
            attacking(book, chosen, size=int(which))
        else:
            training(book, chosen, dataset=which)


# What the attacks see.


@dataclass(frozen=True)
class Stand:
    """Victims of one batch size and their network.

    Args:
        batch: of the victims.
        model: untrained.
        null: (V, B), rMSE of the data set's mean image.
        seed: of clients and attacks.
    """

    batch: Batch
    model: nn.Module
    null: Tensor
    seed: int

    def observe(self, alpha2: float, knowledge: Knowledge) -> Observation:
        defenses = [SPN(alpha2=alpha2)] if alpha2 else []
        return observe(self.batch, self.model, F.cross_entropy, defenses=defenses, knowledge=knowledge, seed=self.seed)

    def score(self, guess: Tensor) -> dict[str, object]:
        """Return rMSE, at most that of the mean image, and PSNR, after assignment."""
        truth = self.batch.inputs
        ordered = arrange(guess, align(guess, truth))
        error = RMSE()(ordered, truth).nan_to_num(torch.inf)
        return {
            "rmse": summary(torch.minimum(error, self.null)),
            "psnr": summary(PSNR()(ordered, truth)),
            "worse than the mean image": float((error >= self.null).double().mean()),
        }


def attacking(book: Book, chosen: argparse.Namespace, *, size: int) -> None:
    loaded = data.load("cifar10")
    batch = data.draw_victims(loaded.test, victims=chosen.victims, batch_size=size, seed=chosen.seed, start=None).to(
        book.device
    )
    plain = build(NETWORK, input_shape=loaded.input_shape, num_classes=loaded.num_classes, seed=chosen.seed)
    mean = loaded.train.inputs(range(10_000)).mean(0).to(book.device)
    stand = Stand(
        batch=batch,
        model=normalized(plain, loaded.mean, loaded.std).to(book.device).eval(),
        null=RMSE()(mean.expand_as(batch.inputs), batch.inputs),
        seed=chosen.seed,
    )
    dlg = DLG(steps=chosen.steps, start=chosen.start, restarts=chosen.restarts)
    book.cell("dlg", partial(by_weight, stand, dlg))
    for alpha2 in chosen.informed:
        attack = SurrogateHead(steps=chosen.informed_steps)
        book.cell(f"surrogate-head, alpha2 {alpha2:g}", partial(informed, stand, attack, alpha2))
    if "dlg" in book.cells:
        book.write(claims=list(correlated(book.cells["dlg"], size)))


def correlated(cell: Mapping[str, object], size: int) -> Iterator[dict[str, object]]:
    """Compare both correlations with the bound; they follow from what the cell holds of every sample."""
    null = numbers(cell["null"])
    rows = [numbers(sub(cell[f"alpha2 {alpha2:g}"], "rmse")) for alpha2 in ALPHAS]
    shares = [[min(own / cap, 1.0) for own, cap in zip(row, null, strict=True)] for row in rows]
    for words, values in (("rMSE", rows), ("rMSE in units of the mean image's", shares)):
        value = correlation([statistics.median(row) for row in values])
        claim = f"batch {size}: Spearman correlation of alpha2 and the median of {words}, capped sample by sample"
        yield {"claim": claim, "value": value, "bound": 0.8, "holds": value is not None and value >= 0.8}


def by_weight(stand: Stand, attack: DLG) -> dict[str, object]:
    """Attack all weights at once, each victim from the same start under all of them."""
    weights, victims = (0.0, *ALPHAS), stand.batch.victims
    seen = [stand.observe(alpha2, Knowledge.NOTHING) for alpha2 in weights]
    update = tuple(torch.cat(tensors) for tensors in zip(*(one.update for one in seen), strict=True))
    keys = tuple((victim,) for _ in weights for victim in range(victims))
    guess = attack(
        replace(seen[0], update=update),
        streams=Streams(seed=stand.seed, keys=keys),
        runtime=Runtime(precision="float32", chunk=len(keys)),
    )
    scores = [stand.score(part) for part in guess.inputs.split(victims)]
    return {
        "null": summary(stand.null),
        **{"undefended" if not alpha2 else f"alpha2 {alpha2:g}": s for alpha2, s in zip(weights, scores, strict=True)},
        "captured": guess.captured,
    }


def correlation(medians: Sequence[float]) -> float | None:
    """Return Spearman's correlation of alpha2 and the median rMSE; None where that is the same for all."""
    return float(spearmanr(ALPHAS, medians).statistic) if len(set(medians)) > 1 else None


def numbers(found: object) -> list[float]:
    """Return all values of a summary."""
    values = sub(found, "values")
    assert isinstance(values, list)
    return values


def sub(cell: object, name: str) -> object:
    assert isinstance(cell, Mapping)
    return cell[name]


def informed(stand: Stand, attack: SurrogateHead, alpha2: float) -> dict[str, object]:
    seen = stand.observe(alpha2, Knowledge.DEFENSES)
    runtime = Runtime(precision="float32", chunk=stand.batch.victims)
    guess = attack(seen, streams=Streams(seed=stand.seed), runtime=runtime)
    return {**stand.score(guess.inputs), "captured": guess.captured}


# What it costs.


def training(book: Book, chosen: argparse.Namespace, *, dataset: str) -> None:
    for seed in chosen.seeds:
        for name, defenses in {"none": (), "spn": (SPN(alpha2=0.1),)}.items():
            book.cell(f"{name}, seed {seed}", partial(federation, chosen, dataset, seed, defenses, book.device))
    seeds = [seed for seed in range(100) if {f"spn, seed {seed}", f"none, seed {seed}"} <= book.cells.keys()]
    lost = [100 * (last(book.cells[f"none, seed {seed}"]) - last(book.cells[f"spn, seed {seed}"])) for seed in seeds]
    if lost:
        book.write(claims=[{"seeds": seeds, **price(lost, dataset)}])


def federation(
    chosen: argparse.Namespace, dataset: str, seed: int, defenses: Sequence[Defense], device: torch.device
) -> dict[str, object]:
    loaded = data.load(dataset)
    some = loaded.train.select(range(min(chosen.images, len(loaded.train))))
    clients = partition(some, "iid", clients=10, seed=seed).apply(some)
    plain = build(NETWORK, input_shape=loaded.input_shape, num_classes=loaded.num_classes, seed=seed)
    made = federate(
        normalized(plain, loaded.mean, loaded.std),
        clients,
        settings=Federation(
            rounds=chosen.rounds or ROUNDS[dataset],
            batch_size=32,
            local=LocalTraining(optimizer="adam", lr=1e-3),
            seed=seed,
        ),
        defenses=defenses,
        test=loaded.test,
        device=device,
    )
    accuracies = [one.accuracy for one in made.rounds if one.accuracy is not None]
    return {"accuracy": accuracies[-1], "accuracies": accuracies, "images": len(some), "test": len(loaded.test)}


def price(lost: Sequence[float], dataset: str) -> dict[str, object]:
    """Return the points of accuracy that are lost, with the interval of 95 %."""
    values = torch.tensor(lost, dtype=torch.float64)
    mean = float(values.mean())
    half = float(t.ppf(0.975, len(lost) - 1) * values.std() / len(lost) ** 0.5) if len(lost) > 1 else None
    interval = None if half is None else [mean - half, mean + half]
    claim = f"{dataset}: points of accuracy lost at alpha2 = 0.1"
    return {
        "claim": claim, "value": mean, "interval": interval, "bound": POINTS[dataset], "holds": mean <= POINTS[dataset]
    }  # fmt: skip


def last(cell: Mapping[str, object]) -> float:
    found = cell["accuracy"]
    assert isinstance(found, float)
    return found


if __name__ == "__main__":
    main()
