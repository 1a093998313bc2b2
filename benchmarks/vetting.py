"""Detection and false alarms of `gradveil vet`, on sets whose seeds were used for nothing else.

python benchmarks/vetting.py --seed 27182 --out results/vetting/seed-27182
"""

import argparse
import copy
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradveil import data
from gradveil.attacks import Fishing, Imprint, TrapWeights
from gradveil.engine import normalized
from gradveil.federated import Probe, vet
from gradveil.models import build, layers
from gradveil.record import about_this_run
from gradveil.storage import write_atomically
from gradveil.streams import Streams
from gradveil.types import Auxiliary

ARCHITECTURES = (
    "mlp:hidden=64",
    "mlp:hidden=128+64",
    "lenet:activation=relu",
    "lenet:activation=sigmoid",
    "convnet:width=8",
)
UNTRAINED = ("resnet20-4", "resnet18")
STAGES = (0, 1, 4, 12)
OPTIMIZERS = ("sgd", "momentum", "adam-decay")


@dataclass(frozen=True)
class Case:
    """One model to vet: what it is, the model, a trusted one, and whether it is malicious."""

    group: str
    name: str
    model: nn.Module
    reference: nn.Module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=27182)
    parser.add_argument("--seeds", type=int, default=4, help="honest trainings per architecture and optimizer")
    parser.add_argument("--out", type=Path, default=Path("results/vetting/seed-27182"))
    chosen = parser.parse_args()
    began = time.monotonic()
    digits = data.load("digits")
    probe = Probe(inputs=digits.test.inputs(range(32)), labels=digits.test.labels[:32])
    cases = itertools.chain(honest(chosen.seed, chosen.seeds, digits), malicious(chosen.seed, digits))
    rows = [row(case, probe) for case in cases]
    groups = {
        name: summary([r for r in rows if r["group"] == name]) for name in dict.fromkeys(r["group"] for r in rows)
    }
    seconds = {"all": time.monotonic() - began}
    made = {
        "spec": {
            "seed": chosen.seed,
            "seeds": chosen.seeds,
            "architectures": ARCHITECTURES,
            "untrained alone": UNTRAINED,
            "stages": STAGES,
            "optimizers": OPTIMIZERS,
            "dataset": "digits",
        },
        "groups": groups,
        "alarms": [r for r in rows if r["group"] == "honest" and r["alone"] != "clean"],
        "missed": [r for r in rows if r["group"] != "honest" and r["alone"] != "malicious"],
        "run": vars_of(about_this_run(seconds=seconds, chunk=0, device=torch.device("cpu"))),
    }
    write_atomically(chosen.out / "record.json", json.dumps(made, indent=1).encode())
    print(json.dumps(groups, indent=1))


def vars_of(run: object) -> dict[str, object]:
    return {name: getattr(run, name) for name in ("date", "seconds", "device", "versions")}


def row(case: Case, probe: Probe) -> dict[str, str]:
    """Vet a model alone, beside a reference, and on own samples."""
    alone, beside, tried = vet(case.model), vet(case.model, case.reference), vet(case.model, probe=probe)
    return {
        "group": case.group,
        "name": case.name,
        "alone": alone.verdict,
        "with reference": beside.verdict,
        "with own samples": tried.verdict,
        "reason": "; ".join(map(str, (alone.items or beside.items or tried.items)[:1])),
    }


def summary(rows: list[dict[str, str]]) -> dict[str, object]:
    views = ("alone", "with reference", "with own samples")
    return {"models": len(rows)} | {
        view: {verdict: sum(r[view] == verdict for r in rows) for verdict in ("malicious", "suspicious", "clean")}
        for view in views
    }


# Honest models: architectures, stages of training, optimizers and seeds; the reference is the stage before.


def honest(seed: int, seeds: int, digits: data.Dataset) -> Iterator[Case]:
    for spec, optimizer, number in itertools.product(ARCHITECTURES, OPTIMIZERS, range(seeds)):
        own = seed + 1000 * number + len(optimizer)
        model = network(spec, digits, own)
        before, done = copy.deepcopy(model), 0
        for stage in STAGES:
            train(model, digits, optimizer, epochs=stage - done, seed=own + stage)
            done = stage
            kept = copy.deepcopy(model)
            yield Case("honest", f"{spec} {optimizer} seed {own} epoch {stage}", kept, before)
            before = kept
    for spec, number in itertools.product(UNTRAINED, range(6)):
        model = network(spec, digits, seed + number)
        yield Case("honest", f"{spec} seed {seed + number} untrained", model, model)


def network(spec: str, digits: data.Dataset, seed: int) -> nn.Module:
    plain = build(spec, input_shape=digits.input_shape, num_classes=digits.num_classes, seed=seed)
    return normalized(plain, digits.mean, digits.std)


def train(model: nn.Module, digits: data.Dataset, optimizer: str, *, epochs: int, seed: int) -> None:
    steppers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=5e-4),
        "adam-decay": lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=1e-2),
    }
    stepper = steppers[optimizer](model.parameters())
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(digits.train), generator=generator).split(64):
            stepper.zero_grad()
            F.cross_entropy(model(digits.train.inputs(rows)), digits.train.labels[rows]).backward()
            stepper.step()
    model.eval()


# Malicious models: the attacks of the suite, and variants that set no threshold; the reference is the honest model.


def malicious(seed: int, digits: data.Dataset) -> Iterator[Case]:
    auxiliary = Auxiliary(inputs=digits.train.inputs(range(200)), labels=digits.train.labels[:200])
    yield from imprints(seed, digits, auxiliary)
    yield from traps(seed, digits, auxiliary)
    yield from fishing(seed, digits)
    yield from suite_fishing(seed, digits, auxiliary)


def imprints(seed: int, digits: data.Dataset, auxiliary: Auxiliary) -> Iterator[Case]:
    hosts = {spec: network(spec, digits, seed + 7) for spec in ARCHITECTURES}
    grid = itertools.product(
        ("mean", "fourier", "random"), (5, 24, 200), (2e-4, 0.3, 8.0), ("gaussian", "laplace", "auxiliary")
    )
    for number, (statistic, bins, gain, source) in enumerate(grid):
        spec = ARCHITECTURES[number % len(ARCHITECTURES)]
        attack = Imprint(bins=bins, source=source, statistic=statistic, gain=gain, mode=11)  # type: ignore[arg-type]
        name = f"imprint {statistic} {bins} bins gain {gain} {source} in {spec}"
        made = poisoned(attack, hosts[spec], digits, auxiliary, seed + number)
        yield Case("imprint", name, made, hosts[spec])
        sparse = changed(made, scaled, seed + number)
        yield Case("imprint sparse", f"{name}, rows scaled", sparse, hosts[spec])
        noisy = changed(made, roughened, seed + number)
        yield Case("imprint noisy (5 %)", f"{name}, noisy", noisy, hosts[spec])
        if number % 9 == 0:
            two = poisoned(Imprint(bins=2, source="gaussian", gain=gain), hosts[spec], digits, None, seed)
            yield Case("evasion: 2 bins", f"2 bins gain {gain} in {spec}", two, hosts[spec])


def traps(seed: int, digits: data.Dataset, auxiliary: Auxiliary) -> Iterator[Case]:
    hosts = {spec: network(spec, digits, seed + 8) for spec in ARCHITECTURES[:2]}
    grid = itertools.product((0.05, 0.5, 3.0), (None, 0.7, 0.93, 1.0), (None, auxiliary), hosts, range(2))
    for std, scale, public, spec, number in grid:
        attack, own = TrapWeights(std=std, scale=scale), seed + 17 + number
        made = poisoned(attack, hosts[spec], digits, public, own)
        name = f"trap-weights std {std} scale {scale} {'with' if public else 'without'} images in {spec} seed {own}"
        yield Case("trap-weights", name, made, hosts[spec])
        if number == 0:
            for share in (0.6, 0.25):
                part = mixed(made, hosts[spec], share)
                group = "trap-weights in 60 % of rows" if share > 0.5 else "evasion: traps in 25 % of rows"
                yield Case(group, f"{name}, {share:.0%} of rows", part, hosts[spec])


def fishing(seed: int, digits: data.Dataset) -> Iterator[Case]:
    """Heads after Wen et al. 2022, built here: other constants than those of the suite's attack."""
    for spec, number in itertools.product(ARCHITECTURES, range(3)):
        host = network(spec, digits, seed + 30 + number)
        target = (seed + 3 * number) % digits.num_classes
        for far in (40.0, 300.0, 1e4):
            yield Case("fishing", f"class {target} far {far} in {spec}", class_head(host, target, far), host)
        for factor in (30.0, 900.0):
            yield Case("fishing", f"feature factor {factor} in {spec}", feature_head(host, 2 + number, factor), host)


def suite_fishing(seed: int, digits: data.Dataset, auxiliary: Auxiliary) -> Iterator[Case]:
    """Heads of the suite's own attack, by class and by feature, in networks before and after training."""
    for spec, number, epochs in itertools.product(ARCHITECTURES, range(3), (0, 4)):
        host = network(spec, digits, seed + 60 + number)
        train(host, digits, "momentum", epochs=epochs, seed=seed + number)
        target = (seed + 7 * number) % digits.num_classes
        name = f"in {spec} seed {number} after {epochs} epochs"
        made = poisoned(Fishing(target=target), host, digits, None, seed)
        yield Case("fishing of the suite, by class", f"class {target} {name}", made, host)
        for sharpness in (20.0, 300.0, 5000.0):
            attack = Fishing(by="feature", target=target, sharpness=sharpness)
            made = poisoned(attack, host, digits, auxiliary, seed)
            yield Case("fishing of the suite, by feature", f"sharpness {sharpness:g} {name}", made, host)


def class_head(host: nn.Module, target: int, far: float) -> nn.Module:
    made = copy.deepcopy(host)
    head = made.get_submodule(layers.last_linear(made))
    with torch.no_grad():
        others = torch.arange(len(head.bias)) != target
        head.weight[others] *= 0.3
        head.bias[others] = far
    return made


def feature_head(host: nn.Module, feature: int, factor: float) -> nn.Module:
    made = copy.deepcopy(host)
    head = made.get_submodule(layers.last_linear(made))
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, feature] = factor * torch.linspace(0.5, 1.5, len(head.bias))
        head.bias.copy_(-0.2 * head.weight[:, feature])
    return made


def poisoned(
    attack: Imprint | TrapWeights | Fishing, host: nn.Module, digits: data.Dataset, public: Auxiliary | None, seed: int
) -> nn.Module:
    channels, height, width = digits.input_shape
    streams = Streams(seed=seed, purpose="attack").bind(1)
    return attack.poison(host, input_shape=(8, channels, height, width), auxiliary=public, streams=streams)


def changed(model: nn.Module, change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]], seed: int) -> nn.Module:
    """Change the rows and biases of the imprint block's bins."""
    made = copy.deepcopy(model)
    (path,) = [name.removesuffix(".weight") for name, _ in made.named_parameters() if name.endswith("bins.weight")]
    layer = made.get_submodule(path)
    with torch.no_grad():
        weight, bias = change(layer.weight.clone(), layer.bias.clone(), seed)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return made


def scaled(weight: Tensor, bias: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Scale every bin by a factor of its own, which moves no threshold."""
    factors = (1.5 * drawn((len(weight),), seed)).exp()
    return weight * factors[:, None], bias * factors


def roughened(weight: Tensor, bias: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Add noise of a twentieth of the weights' size."""
    return weight + 0.05 * weight.abs().mean() * drawn(weight.shape, seed), bias


def mixed(made: nn.Module, host: nn.Module, share: float) -> nn.Module:
    """Trap some rows of the first layer alone."""
    both = copy.deepcopy(made)
    name = next(n for n, t in both.named_parameters() if t.ndim == 2)
    with torch.no_grad():
        kept = int(share * len(both.get_parameter(name)))
        both.get_parameter(name)[kept:] = host.get_parameter(name)[kept:]
    return both


def drawn(shape: tuple[int, ...] | torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    main()
