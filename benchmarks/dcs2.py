"""DCS² and DCS²+: what concealed samples protect, under every preset and attack, and what they cost.

GRADVEIL_DATA=... python benchmarks/dcs2.py --out results/dcs2 --parts mnist mnist-imprint cost
GRADVEIL_DATA=... python benchmarks/dcs2.py --out results/dcs2 --parts cifar10 cifar10-imprint
GRADVEIL_DATA=... gradveil train generator runs/mnist-generator.safetensors --dataset mnist --device cpu \\
    --settings epochs=6,latent_size=32,width=16,conditional=yes
GRADVEIL_DATA=... python benchmarks/dcs2.py --out results/dcs2 --parts mnist-generative \\
    --generator runs/mnist-generator.safetensors

Batches of two test images (four for the imprint attack) with distinct labels, the last one sensitive; untrained
networks: the sigmoid LeNet on MNIST, the ConvNet of width 32 on CIFAR-10. Every attack meets all presets and no
defense in one stack, from the same starts: a defender does not choose after seeing the attack. Scores are those of the
sensitive sample, by its place in the batch as the paper has them (`index`) and after assignment (`assigned`).
`extra-image` is the adversary who knows of concealed samples. `claims` at the end of a file compare with what is
asked for; the paper's figures stand beside. SSIM is averaged over windows inside the image (`ssim`), and over windows
around every pixel of an image within black, as in the authors' program (`padded ssim`). All rows have the
paper's objective but `imprint, scaled`, which is that preset as it comes: logit distances in units of those at first.
In the row `matching, as heavy as the batch` the concealed sample weighs as much as the whole batch, as in the authors'
program; in the others as much as one of its samples. The generative attack searches the latents of a generator of
training images, two of test images at once, with the objective of the authors' program; it returns plausible digits
whatever it is given, so judge it beside the same search on random updates.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from cells import Book, books, parser_of, summary
from torch import Tensor, nn

from gradveil import Batch, Knowledge, Observation, Runtime, Streams, data, normalized, observe
from gradveil.attacks import DLG, Attack, ExtraImage, Generative, Imprint, InvertingGradients
from gradveil.defenses import DCS2
from gradveil.metrics import PSNR, SSIM, align, arrange
from gradveil.models import build, checkpoints, generators
from gradveil.types import Auxiliary

Preset: TypeAlias = Literal["matching", "imprint", "generative"]
PRESETS: tuple[Preset, ...] = ("matching", "imprint", "generative")
SCALED = "imprint, scaled"
HEAVY = "matching, as heavy as the batch"
SCORES = {"psnr": PSNR(), "ssim": SSIM(), "padded ssim": SSIM(padding="zeros")}
SEARCH = "mnist-generative"
PARTS = ("mnist", "mnist-imprint", SEARCH, "cifar10", "cifar10-imprint", "cost")
NETWORKS = {"mnist": "lenet", "cifar10": "convnet:width=32"}
KNOWN = Knowledge.LABELS | Knowledge.DEFENSES
PAPER = {  # Table 1: PSNR and SSIM without a defense and of DCS²+
    "mnist": {"dlg": (31.95, 0.75, 5.98, 0.12), "gs": (45.25, 0.92, 10.58, 0.22), "imprint": (82.43, 1.0, 19.95, 0.6)},
    "cifar10": {
        "dlg": (15.85, 0.52, 5.49, 0.08),
        "gs": (18.5, 0.65, 6.39, 0.11),
        "imprint": (140.62, 0.98, 14.14, 0.49),
    },
    SEARCH: {"generative, on CelebA and ResNet18 (Table 5)": (11.59, 0.27, 8.27, 0.16)},
}


def main() -> None:
    parser = parser_of(PARTS, out=Path("results/dcs2"))
    parser.add_argument("--victims", type=int, default=32, help="on MNIST")
    parser.add_argument("--cifar-victims", type=int, default=8)
    parser.add_argument("--imprint-victims", type=int, default=None, help="if not those above")
    parser.add_argument("--dlg-steps", type=int, default=300, help="of 20 iterations, on MNIST")
    parser.add_argument("--steps", type=int, default=10_000, help="of the other attacks, on MNIST")
    parser.add_argument("--cifar-steps", type=int, default=2400, help="of all attacks on CIFAR-10, in iterations")
    parser.add_argument("--weight", default="sample", choices=("sample", "batch"), help="of concealed samples")
    parser.add_argument("--conceal", type=int, default=None, help="steps for a concealed sample, if not the preset's")
    parser.add_argument("--generator", type=Path, default=None, help="safetensors file, for the generative attack")
    parser.add_argument("--generative-victims", type=int, default=32)
    parser.add_argument("--generative-steps", type=int, default=1500, help="of Adam")
    chosen = parser.parse_args()
    if SEARCH in chosen.parts and chosen.generator is None:
        parser.error(f"{SEARCH} needs --generator; make one with `gradveil train generator`")
    for book in opened(chosen):
        part = str(book.spec["part"])
        dataset, _, kind = part.partition("-")
        if part == "cost":
            book.cell("concealed", partial(cost, chosen, book.device))
        elif part == SEARCH:
            searching(book, chosen)
        elif kind == "imprint":
            imprinting(book, chosen, dataset)
        else:
            matching(book, chosen, dataset)
        book.write(claims=claims(book.cells, dataset), paper=PAPER.get(part, PAPER.get(dataset, {})))


def opened(chosen: argparse.Namespace) -> list[Book]:
    """Open the files of the chosen parts; what is of one part alone stands in the settings of no other."""
    own = ("generator", "generative_victims", "generative_steps")
    shared = {name: value for name, value in vars(chosen).items() if name not in own}
    found = []
    for part in chosen.parts:
        settings = {**shared, "parts": [part]}
        if part == SEARCH:
            settings |= {name: getattr(chosen, name) for name in own} | {"generator": made(chosen.generator)}
        found += books(argparse.Namespace(**settings))
    return found


@dataclass(frozen=True)
class Stand:
    """Victims with one sensitive sample each, their network, and what is public.

    Args:
        batch: the last sample of each is sensitive.
        model: that the honest server sends.
        public: images for a malicious one.
        mean: image of the training split.
        defenses: by name; none is called `undefended`.
        seed: of clients and attacks.
    """

    batch: Batch
    model: nn.Module
    public: Auxiliary
    mean: Tensor
    defenses: Mapping[str, tuple[DCS2, ...]]
    seed: int

    def updates(self, model: nn.Module) -> list[Observation]:
        """Return what the server sees under each defense."""
        return [
            observe(self.batch, model, F.cross_entropy, defenses=own, knowledge=KNOWN, seed=self.seed)
            for own in self.defenses.values()
        ]

    def scores(self, guesses: Tensor) -> dict[str, object]:
        """Score the guesses of all defenses, one after the other, of the sensitive samples."""
        parts = guesses.split(self.batch.victims)
        return {name: score(part, self.batch.inputs) for name, part in zip(self.defenses, parts, strict=True)}


def stand_of(chosen: argparse.Namespace, dataset: str, device: torch.device, *, victims: int, size: int) -> Stand:
    loaded = data.load(dataset)
    batch = data.draw_victims(
        loaded.test, victims=victims, batch_size=size, seed=chosen.seed, start=None, distinct_labels=True
    )
    last = (torch.arange(size) == size - 1).expand(victims, size)
    shape, classes = loaded.input_shape, loaded.num_classes
    plain = build(NETWORKS[dataset], input_shape=shape, num_classes=classes, seed=chosen.seed)
    some = loaded.train.inputs(range(min(len(loaded.train), 10_000)))
    defenses = {
        str(preset): DCS2(preset=preset, objective="paper", weight=chosen.weight, steps=chosen.conceal)
        for preset in PRESETS
    }
    defenses[SCALED] = replace(defenses["imprint"], objective="scaled")
    defenses[HEAVY] = replace(defenses["matching"], weight="batch")
    return Stand(
        batch=replace(batch, sensitive=last).to(device),
        model=normalized(plain, loaded.mean, loaded.std).to(device).eval(),
        public=Auxiliary(inputs=some[:1000].to(device)),
        mean=some.mean(0).to(device),
        defenses={"undefended": (), **{name: (defense,) for name, defense in defenses.items()}},
        seed=chosen.seed,
    )


def score(guess: Tensor, truth: Tensor) -> dict[str, object]:
    """Score the last sample of every batch, by its place and after assignment."""
    found: dict[str, object] = {}
    for way, ordered in (("index", guess), ("assigned", arrange(guess, align(guess, truth)))):
        for name, metric in SCORES.items():
            found[f"{way} {name}"] = summary(metric(ordered, truth)[:, -1])
    return found


# Passive attacks: all defenses in one stack.


def matching(book: Book, chosen: argparse.Namespace, dataset: str) -> None:
    small = dataset == "mnist"
    victims = chosen.victims if small else chosen.cifar_victims
    stand = stand_of(chosen, dataset, book.device, victims=victims, size=2)
    methods = attacks(*((chosen.dlg_steps, chosen.steps) if small else (chosen.cifar_steps // 20, chosen.cifar_steps)))
    if {"mean image", "agreement", *methods} <= book.cells.keys():
        return
    seen = stand.updates(stand.model)
    book.cell("mean image", lambda: score(stand.mean.expand_as(stand.batch.inputs), stand.batch.inputs))
    book.cell("agreement", lambda: agreement(seen, tuple(stand.defenses)))
    runtime = Runtime(precision="float32" if small else "tf32", chunk=victims * len(seen))
    for name, attack in methods.items():
        book.cell(name, partial(attacked, stand, attack, seen, runtime))


def attacks(dlg_steps: int, steps: int) -> dict[str, Attack]:
    return {
        "dlg": DLG(steps=max(dlg_steps, 1)),
        "gs": InvertingGradients(steps=steps, signed=False, boxed=False),  # as in the authors' program
        "extra-image": ExtraImage(steps=min(steps, 4800), extra=1),
    }


def attacked(stand: Stand, attack: Attack, seen: Sequence[Observation], runtime: Runtime) -> dict[str, object]:
    """Attack all defenses at once, each victim from the same start under all of them."""
    joined = join(seen)
    if not isinstance(attack, ExtraImage):
        joined = replace(joined, knowledge=Knowledge.LABELS | attack.requires, defenses=None)
    keys = tuple((victim,) for _ in seen for victim in range(stand.batch.victims))
    guess = attack(joined, streams=Streams(seed=stand.seed, keys=keys), runtime=runtime)
    return {**stand.scores(guess.inputs), "captured": guess.captured}


def join(seen: Sequence[Observation]) -> Observation:
    labels = [one.labels for one in seen if one.labels is not None]
    update = tuple(torch.cat(tensors) for tensors in zip(*(one.update for one in seen), strict=True))
    return replace(seen[-1], update=update, labels=torch.cat(labels))


def agreement(seen: Sequence[Observation], names: Sequence[str]) -> dict[str, object]:
    """Return the smallest inner product and cosine of the plain and the shared gradient, in float64."""
    flat = [torch.cat([tensor.double().flatten(1) for tensor in one.update], 1) for one in seen]
    return {
        name: {
            "smallest product": float((flat[0] * shared).sum(1).min()),
            "smallest cosine": float(F.cosine_similarity(flat[0], shared, dim=1).min()),
        }
        for name, shared in zip(names, flat, strict=True)
    }


# A generator of such images: the same search under all defenses, and on random updates.


def searching(book: Book, chosen: argparse.Namespace) -> None:
    stand = stand_of(chosen, "mnist", book.device, victims=chosen.generative_victims, size=2)
    if {"mean image", "agreement", "generative", "random update"} <= book.cells.keys():
        return
    prior = Auxiliary(generator=generators.load(chosen.generator).to(book.device))
    seen = [replace(one, auxiliary=prior) for one in stand.updates(stand.model)]
    attack = Generative(
        optimizer="adam", steps=chosen.generative_steps, objective="cosine", weight=1e-4, defense="ignored"
    )
    book.cell("mean image", lambda: score(stand.mean.expand_as(stand.batch.inputs), stand.batch.inputs))
    book.cell("agreement", lambda: agreement(seen, tuple(stand.defenses)))
    runtime = Runtime(precision="float32", chunk=stand.batch.victims * len(seen))
    book.cell("generative", partial(attacked, stand, attack, seen, runtime))
    null = replace(stand, defenses={"random update": ()})
    book.cell("random update", partial(attacked, null, attack, [random_like(seen[0], chosen.seed)], runtime))


def made(path: Path) -> dict[str, object]:
    """Return how a generator was made, and a checksum of its weights in the order of their names."""
    about, digest = checkpoints.read_about(path), hashlib.sha256()
    for _, tensor in sorted(generators.load(path).state_dict().items()):
        digest.update(tensor.numpy().tobytes())
    told = {"dataset": about["dataset"], "training": json.loads(about["training"]), "torch": about["torch"]}
    return {**told, "error of test images": float(about["error"]), "sha256 of weights": digest.hexdigest()}


def random_like(seen: Observation, seed: int) -> Observation:
    """Put noise in the place of every tensor of an update, as long as it is."""
    streams = Streams(seed=seed, purpose="random-gradient").bind(seen.victims)
    noise = [streams.normal(f"update/{i}", g.shape[1:], like=g).flatten(1) for i, g in enumerate(seen.update)]
    scaled = [F.normalize(n) * g.flatten(1).norm(dim=1, keepdim=True) for n, g in zip(noise, seen.update, strict=True)]
    return replace(seen, update=tuple(n.view_as(g) for n, g in zip(scaled, seen.update, strict=True)))


# The malicious server, with the bins of the authors' program and with many that fit the data.


def imprinting(book: Book, chosen: argparse.Namespace, dataset: str) -> None:
    victims = chosen.imprint_victims or (chosen.victims if dataset == "mnist" else chosen.cifar_victims)
    stand = stand_of(chosen, dataset, book.device, victims=victims, size=4)
    methods = {
        "imprint": Imprint(bins=10, statistic="fourier", mode=0, source="laplace"),
        "imprint, 128 fitted bins": Imprint(bins=128),
    }
    book.cell("mean image", lambda: score(stand.mean.expand_as(stand.batch.inputs), stand.batch.inputs))
    for name, attack in methods.items():
        book.cell(name, partial(imprinted, stand, attack))


def imprinted(stand: Stand, attack: Imprint) -> dict[str, object]:
    _, *shape = stand.batch.inputs.shape
    batch, channels, height, width = shape
    poisoned = attack.poison(
        stand.model,
        input_shape=(batch, channels, height, width),
        auxiliary=stand.public,
        streams=Streams(seed=stand.seed),
    )
    seen = stand.updates(poisoned)
    guesses = [attack(one, streams=Streams(seed=stand.seed)).inputs for one in seen]
    return {**stand.scores(torch.cat(guesses)), "agreement": agreement(seen, tuple(stand.defenses))}


def cost(chosen: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Conceal 100 images in one stack, 50 clients with two each, the first call of the program included."""
    stand = stand_of(chosen, "cifar10", device, victims=50, size=2)
    began = time.perf_counter()
    defense = DCS2(steps=chosen.conceal)
    seen = observe(replace(stand.batch, sensitive=None), stand.model, F.cross_entropy, defenses=[defense], seed=0)
    float(seen.update[0].sum())  # waits for the device
    return {"images": 100, "steps": chosen.conceal or 1000, "build seconds": time.perf_counter() - began}


# What is asked for.


def claims(cells: Mapping[str, Mapping[str, object]], dataset: str) -> list[dict[str, object]]:
    """Compare means with the bounds, where the cells are there."""
    found = [one for way in ("index", "assigned") for one in (*matched(cells, dataset, way), *sorted_apart(cells, way))]
    found += agreed(cells)
    if "concealed" in cells:
        took = number(cells["concealed"], "build seconds")
        found.append(claim("seconds for 100 concealed images", took, 60, at_most))
    return found


def matched(cells: Mapping[str, Mapping[str, object]], dataset: str, way: str) -> Iterator[dict[str, object]]:
    for attack in (name for name in ("dlg", "gs") if name in cells):
        line = mean_of(cells["mean image"], f"{way} psnr") + 1
        bare, own = (sub(cells[attack], row) for row in ("undefended", "matching"))
        say = f"{attack}, {way}"
        yield claim(f"{say} PSNR at most 1 dB above the mean image", mean_of(own, f"{way} psnr"), line, at_most)
        yield claim(f"{say} SSIM of windows inside the image", mean_of(own, f"{way} ssim"), 0.25, at_most)
        yield claim(f"{say} SSIM, zero-padded as the paper's", mean_of(own, f"{way} padded ssim"), 0.25, at_most)
        if dataset == "mnist":
            yield claim(f"{say} PSNR undefended, above", mean_of(bare, f"{way} psnr"), 28, above)


def sorted_apart(cells: Mapping[str, Mapping[str, object]], way: str) -> Iterator[dict[str, object]]:
    for attack in (name for name in cells if name.startswith("imprint")):
        for row in ("imprint", SCALED):
            value = mean_of(sub(cells[attack], row), f"{way} psnr")
            yield claim(f"attack {attack}; defense {row}: {way} PSNR", value, 22, at_most)


def agreed(cells: Mapping[str, Mapping[str, object]]) -> Iterator[dict[str, object]]:
    for name, cell in cells.items():
        rows = cell if name == "agreement" else sub(cell, "agreement")
        for row in (row for row in (*PRESETS, SCALED, HEAVY) if row in rows):
            value = number(sub(rows, row), "smallest product")
            yield claim(f"{name}; defense {row}: product with the plain gradient", value, 0, least)


def claim(text: str, value: float, bound: float, holds: Callable[[float, float], bool]) -> dict[str, object]:
    return {"claim": text, "value": value, "bound": bound, "holds": holds(value, bound)}


def at_most(value: float, bound: float) -> bool:
    return value <= bound


def above(value: float, bound: float) -> bool:
    return value > bound


def least(value: float, bound: float) -> bool:
    return value >= bound


def sub(cell: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = cell.get(name, {})
    return found if isinstance(found, Mapping) else {}


def number(cell: Mapping[str, object], name: str) -> float:
    found = cell[name]
    assert isinstance(found, float)
    return found


def mean_of(cell: Mapping[str, object], name: str) -> float:
    return number(sub(cell, name), "mean")


if __name__ == "__main__":
    main()
