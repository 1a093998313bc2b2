"""What attacks of the gradient matching family add to the engine's step, in one run.

python benchmarks/bookkeeping.py --threads 1
python benchmarks/bookkeeping.py --device cuda --out results/bookkeeping

`bare` is what no attack can do without: the attack's own objective (gradient of the network, distance, priors), its
backward pass, and the optimizer's move, in a loop written here. `attack` is an iteration of the attack itself, called
as everybody calls it: bare, and signs, bounds, best iterates, checks for numbers that are not finite, progress. Their
ratio less 1 is what the attack's bookkeeping adds. `matching`, once for all, is bare with the cosine alone and Adam.
On CUDA all of them are replayed as graphs. Bare is timed before and after the attack, and the two are averaged.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradveil import engine
from gradveil.attacks import Attack, attacks
from gradveil.attacks._objectives import distance_to
from gradveil.client import observe
from gradveil.defenses import Defense, GaussianNoise, TransformPolicy
from gradveil.engine import Adam, Minimum, Optimizer, Runtime, Variable, normalized
from gradveil.engine.capture import capture
from gradveil.models import build
from gradveil.record import about_this_run
from gradveil.storage import write_atomically
from gradveil.streams import Streams
from gradveil.types import Batch, Knowledge, Observation

FAMILY = (
    "inverting-gradients:steps=100",
    "gradient-matching:preset=adam-l2,steps=100",
    "gradient-matching:preset=adam-l1,steps=100",
    "gradient-matching:preset=sgd-cosine,steps=100",
    "gradient-matching:preset=lbfgs-cosine,steps=5,restarts=1",
    "dlg:steps=5",
    "idlg:steps=5",
    "see-through-gradients:steps=100",
    "bayes-optimal:steps=100",
    "policy-aware:steps=100",
)
"""Attacks of 100 iterations each: the first 50 warm up, the last 50 are timed."""

KNOWN: Mapping[str, Defense] = {
    "bayes-optimal": GaussianNoise(std=1e-3),
    "policy-aware": TransformPolicy(policy="3-1-7"),
}
SEARCHES = tuple(f"gradveil.attacks.{name}" for name in ("_descent", "_joint", "_matching", "_policy_search"))


@dataclass(frozen=True)
class Took:
    """Milliseconds of one iteration: on the clock, and of the processors."""

    wall: float
    cpu: float


@dataclass
class Clock:
    """Times the stretches between marks, after waiting for the device."""

    device: torch.device
    marks: list[tuple[float, float]] = field(default_factory=list)

    def mark(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.marks.append((time.perf_counter(), time.process_time()))

    def each(self, count: int, *, stretch: int) -> Took:
        """Return an iteration's share of the stretch after a mark, which held so many."""
        (wall, cpu), (wall_after, cpu_after) = self.marks[stretch : stretch + 2]
        return Took(1e3 * (wall_after - wall) / count, 1e3 * (cpu_after - cpu) / count)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attacks", nargs="+", default=FAMILY, help="with 100 iterations each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=None, help="resnet20-4 on cuda, else convnet:width=16")
    parser.add_argument("--victims", type=int, default=None, help="100 on cuda, else 8")
    parser.add_argument("--repeats", type=int, default=10, help="bare steps before and after an attack")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder for record.json")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)
    chosen.model = chosen.model or ("resnet20-4" if device.type == "cuda" else "convnet:width=16")
    chosen.victims = chosen.victims or (100 if device.type == "cuda" else 8)

    begin = time.perf_counter()
    runtime = Runtime(precision=chosen.precision, chunk=chosen.victims)
    found: dict[str, object] = {"matching": vars(plain_matching(watch(chosen, (), device), runtime, chosen.repeats))}
    for spec in chosen.attacks:
        attack = attacks.build(spec)
        defenses = [defense for name, defense in KNOWN.items() if name == attacks.name_of(attack)]
        found[spec] = compare(attack, watch(chosen, defenses, device), runtime, chosen)
        print(spec, json.dumps(found[spec]), flush=True)
    if chosen.out:
        run = about_this_run(seconds={"all": time.perf_counter() - begin}, chunk=chosen.victims, device=device)
        about = {"date": run.date, "seconds": run.seconds, "device": run.device, "versions": run.versions}
        spec = {name: value for name, value in vars(chosen).items() if name != "out"}
        record = {"spec": spec, "milliseconds per iteration": found, "run": about}
        write_atomically(chosen.out / "record.json", json.dumps(record, indent=1).encode())


def watch(chosen: argparse.Namespace, defenses: Sequence[Defense], device: torch.device) -> Observation:
    """Return what an adversary sees of random images, under defenses that it knows of."""
    streams = Streams(seed=chosen.seed, purpose="benchmark").bind(chosen.victims)
    images = streams.uniform("images", (1, 3, 32, 32)).to(device)
    batch = Batch(images, streams.integers("labels", 100, (1,)).to(device))
    network = build(chosen.model, input_shape=(3, 32, 32), num_classes=100, seed=chosen.seed)
    model = normalized(network, [0.5] * 3, [0.25] * 3).to(device)
    known = Knowledge.LABELS | Knowledge.DEFENSES
    return observe(batch, model, F.cross_entropy, defenses=defenses, knowledge=known, seed=chosen.seed)


def plain_matching(seen: Observation, runtime: Runtime, repeats: int) -> Took:
    """Time a step towards the cosine alone, from grey."""
    assert seen.labels is not None
    labels, (victims, device) = seen.labels, (seen.victims, seen.device)
    with runtime.numerics():
        match = engine.matching(seen, precision=runtime.precision)
        distance = distance_to(match.target, "cosine")
        grey = Variable(start=torch.full((victims, *seen.input_shape), 0.5, device=device))
        return time_bare(lambda values: distance(match.factors(values[0], labels)), [grey], Adam(), repeats)


def compare(attack: Attack, seen: Observation, runtime: Runtime, chosen: argparse.Namespace) -> dict[str, object]:
    """Time an attack, and the bare steps of the very objective, variables and optimizer that it brings."""
    bare: list[Took] = []
    clock = Clock(seen.device)

    def minimize(
        objective: Callable[[tuple[Tensor, ...]], Tensor],
        variables: Sequence[Variable],
        *,
        optimizer: Optimizer,
        runtime: Runtime,
        **settings: Any,
    ) -> Minimum:
        bare.append(time_bare(objective, variables, optimizer, chosen.repeats))
        timed = Runtime(
            precision=runtime.precision, chunk=runtime.chunk, progress=lambda _task, _done, _total: clock.mark()
        )
        result = engine.minimize(objective, variables, optimizer=optimizer, runtime=timed, **settings)
        bare.append(time_bare(objective, variables, optimizer, chosen.repeats))
        return result

    with searching_by(minimize):
        guess = attack(seen, streams=Streams(seed=chosen.seed), runtime=runtime)
    least = Took(sum(b.wall for b in bare) / len(bare), sum(b.cpu for b in bare) / len(bare))
    assert len(clock.marks) >= 3, f"the attack stopped before 100 iterations, at {len(clock.marks)} marks"
    own = clock.each(50, stretch=0)
    added = {"wall": own.wall / least.wall - 1, "cpu": own.cpu / least.cpu - 1}
    return {"bare": vars(least), "attack": vars(own), "added": added, "captured": guess.captured}


@contextmanager
def searching_by(minimize: Callable[..., Minimum]) -> Iterator[None]:
    """Let attacks search by another function for a while."""
    modules = [import_module(name) for name in SEARCHES]
    for module in modules:
        assert module.minimize is engine.minimize
        module.minimize = minimize  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.minimize = engine.minimize  # type: ignore[attr-defined]


def time_bare(
    objective: Callable[[tuple[Tensor, ...]], Tensor], variables: Sequence[Variable], optimizer: Optimizer, repeats: int
) -> Took:
    """Time steps of an objective, its backward pass and an optimizer's move; on CUDA as a graph."""
    values = [variable.start.detach().clone() for variable in variables]
    state, like = optimizer.start(values), values[0]
    rate, active = torch.ones((), device=like.device), torch.ones(len(like), dtype=torch.bool, device=like.device)

    def step() -> Tensor:
        leaves = tuple(value.detach().requires_grad_() for value in values)
        losses = objective(leaves)
        gradients = torch.autograd.grad(losses.sum(), leaves)
        optimizer.move(values, gradients, losses.detach(), state=state, rate=rate, active=active)
        return losses.detach()

    own = {**{f"value.{i}": value for i, value in enumerate(values)}, **state}
    run = capture(step, own) if like.is_cuda else step
    assert run is not None, "the bare step cannot be captured, so that there is nothing to compare a captured one with"
    for _ in range(3):
        run()
    clock = Clock(like.device)
    clock.mark()
    for _ in range(repeats):
        run()
    clock.mark()
    return clock.each(repeats, stretch=0)


if __name__ == "__main__":
    main()
