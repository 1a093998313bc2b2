"""What to audit: a TOML file or a command line, checked once and frozen; a grid of cells."""

import dataclasses
import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from gradveil.attacks import Attack, attacks
from gradveil.defenses import Defense, defenses
from gradveil.engine import Precision
from gradveil.errors import GradVeilError, SpecError, unknown_name
from gradveil.metrics import Metric, metrics
from gradveil.models import architectures
from gradveil.models.training import PRESETS, Training
from gradveil.registry import Registry
from gradveil.types import Knowledge, LocalTraining, Mode

T = TypeVar("T")
STATES = ("untrained", "trained", "trained-with-defense")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """A grid of audits: every model, state, defense and attack with each other.

    Args:
        dataset: such as `digits`, `cifar100` or `folder:PATH`.
        split: whose images are private, `test` or `train`.
        victims: V.
        batch_size: B, images of each victim.
        start: index of the first private image; -1 draws them at random by the seed.
        models: such as `resnet20-4`.
        states: `untrained`, `trained`, `trained-with-defense` or `checkpoint:PATH`.
        defenses: `none`, a defense, or several joined by ` + `.
        attacks: such as `inverting-gradients:steps=4800`.
        metrics: to score with.
        knowledge: granted to the adversary: labels, buffers, local-training, defenses, auxiliary; by default it knows
            the labels and the defenses, as a careful audit assumes.
        mode: of batch norm at the client.
        seed: of all randomness.
        model_seed: of the network's initial weights.
        normalize: make standardization by the data set's mean and std the model's first step.
        decoys: candidates in identification.
        null_victims: victims whose update is also replaced by a random one.
        precision: of the attack.
        deterministic: repeat the bits on a GPU.
        training: of the states that need one.
        local: the clients' training.
    """

    dataset: str = "digits"
    split: Literal["test", "train"] = "test"
    victims: int = 16
    batch_size: int = 1
    start: int = 0
    models: tuple[str, ...] = ("lenet",)
    states: tuple[str, ...] = ("untrained",)
    defenses: tuple[str, ...] = ("none",)
    attacks: tuple[str, ...] = ("inverting-gradients",)
    metrics: tuple[str, ...] = ("psnr", "ssim", "registered-psnr", "rmse")
    knowledge: tuple[str, ...] = ("labels", "defenses")
    mode: Mode = "eval"
    seed: int = 0
    model_seed: int = 0
    normalize: bool = True
    decoys: int = 1000
    null_victims: int = 8
    precision: Precision = "tf32"
    deterministic: bool = False
    training: Training = field(default_factory=lambda: Training(epochs=10, optimizer="adam", lr=0.01, weight_decay=0.0))
    local: LocalTraining = field(default_factory=LocalTraining)

    def __post_init__(self) -> None:
        for name in ("victims", "batch_size", "decoys"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("models", "states", "defenses", "attacks", "metrics"):
            if not getattr(self, name):
                raise SpecError(f"{name} must name at least one; give a list")
        choices = {"split": ("test", "train"), "mode": get_args(Mode), "precision": get_args(Precision)}
        for name, options in choices.items():
            if getattr(self, name) not in options:
                raise SpecError(f"{name} must be one of {', '.join(options)}, got '{getattr(self, name)}'")
        self._build_everything()

    def _build_everything(self) -> None:
        """Make every object once, so that a mistake shows before anything runs."""
        parse_knowledge(self.knowledge)
        for state in self.states:
            if state not in STATES and not state.startswith("checkpoint:"):
                raise unknown_name("model state", state, [*STATES, "checkpoint:PATH"])
        for model in self.models:
            build(architectures, model)
        for metric in self.metrics:
            build(metrics, metric)
        for cell in self.cells():
            cell.build_attack()
            cell.build_defenses()

    def cells(self) -> tuple["Cell", ...]:
        """List the grid, models first, attacks last."""
        grid = itertools.product(self.models, self.states, self.defenses, self.attacks)
        return tuple(Cell(model=m, state=s, defenses=d, attack=a) for m, s, d, a in grid)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by table, as in a spec file; `spec_from` reads them back."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        beside = {name: values.pop(name) for name in ("training", "local")}
        return {"audit": values, **beside}

    def to_toml(self) -> str:
        """Write a spec file."""
        tables = []
        for table, values in self.to_dict().items():
            lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
            tables.append("\n".join([f"[{table}]", *lines]))
        return "\n\n".join(tables) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One audit of a grid, as spec strings."""

    model: str
    state: str
    defenses: str
    attack: str

    @property
    def name(self) -> str:
        """A file name that people can read and that no other cell has."""
        text = "|".join((self.model, self.state, self.defenses, self.attack))
        words = re.sub(r"[^a-zA-Z0-9.]+", "-", "-".join((self.model, self.state, self.defenses, self.attack)))
        return f"{words.strip('-')[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.attack} on {self.model} ({self.state}), defense: {self.defenses}"

    def build_attack(self) -> Attack:
        """Make the attack."""
        return build(attacks, self.attack)

    def build_defenses(self) -> tuple[Defense, ...]:
        """Make the defenses, in order."""
        if self.defenses.strip() == "none":
            return ()
        return tuple(build(defenses, part.strip()) for part in self.defenses.split(" + "))


def build(registry: Registry[T], text: str) -> T:
    """Build a method from its spec string; a value that its constructor refuses is a mistake in the spec."""
    try:
        return registry.build(text)
    except GradVeilError:
        raise
    except (ValueError, TypeError) as error:
        raise SpecError(f"{registry.kind} '{text}': {error}") from error


def build_metrics(spec: AuditSpec) -> tuple[Metric, ...]:
    """Make the metrics of a spec."""
    return tuple(build(metrics, text) for text in spec.metrics)


def parse_knowledge(names: tuple[str, ...]) -> Knowledge:
    """Join names such as `labels` into a flag; `nothing` is nothing.

    Example:
        >>> parse_knowledge(("labels",)) is Knowledge.LABELS
        True
    """
    known = {flag.name.lower().replace("_", "-"): flag for flag in Knowledge if flag.name}
    granted = Knowledge.NOTHING
    for name in names:
        if name in {"nothing", ""}:
            continue
        if name not in known:
            raise unknown_name("knowledge", name, [*known, "nothing"])
        granted |= known[name]
    return granted


def read_spec(path: Path) -> AuditSpec:
    """Read a spec file."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise SpecError(
            f"there is no spec file at {path}; see `gradveil audit --help` for the flags instead"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error
    return spec_from(content)


def spec_from(content: Mapping[str, Any]) -> AuditSpec:
    """Make a spec from plain values: the table [audit], and [training] and [local] beside it."""
    strangers = set(content) - {"audit", "training", "local"}
    if strangers:
        raise unknown_name("table of a spec file", min(strangers), ["audit", "training", "local"])
    values = dict(content.get("audit", {}))
    training, local = dict(content.get("training", {})), dict(content.get("local", {}))
    preset = training.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise unknown_name("training preset", str(preset), PRESETS)
    made = _fill(AuditSpec, values, "audit")
    if preset is not None or training:
        base = PRESETS[preset] if preset else Training()
        made["training"] = _make(Training, {**_fields(base), **_fill(Training, training, "training")}, "training")
    if local:
        made["local"] = _make(LocalTraining, _fill(LocalTraining, local, "local"), "local")
    return _make(AuditSpec, made, "audit")  # type: ignore[no-any-return]


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _fill(kind: type, values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Check names and rough types against the fields of a dataclass."""
    known = {f.name: f for f in dataclasses.fields(kind)}
    made: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known or name in {"training", "local"}:
            raise unknown_name(f"setting of [{table}]", key, known)
        made[name] = _checked(known[name].type, value, f"[{table}] {key}")
    return made


def _checked(kind: Any, value: Any, where: str) -> Any:
    wanted = str(kind)
    if "tuple[str" in wanted:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise SpecError(f"{where} must be a text or a list of texts, got {value!r}")
        return tuple(values)
    plain: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
    if kind in plain and (not isinstance(value, plain[kind]) or (kind is not bool and isinstance(value, bool))):
        raise SpecError(f"{where} must be {kind.__name__}, got {value!r}")
    return float(value) if kind is float else value


def _make(kind: type, values: dict[str, Any], table: str) -> Any:
    try:
        return kind(**values)
    except GradVeilError:
        raise
    except (ValueError, TypeError) as error:
        raise SpecError(f"[{table}]: {error}") from error
