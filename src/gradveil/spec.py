"""What to audit: a TOML file or a command line, checked once and frozen; a grid of cells."""

import dataclasses
import hashlib
import itertools
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from gradveil._informed import Informed, informed
from gradveil.attacks import Attack, attacks
from gradveil.data import sources
from gradveil.defenses import Defense, StepDefense, defenses
from gradveil.engine import Precision
from gradveil.errors import GradVeilError, SpecError, unknown_name
from gradveil.metrics import Metric, metrics
from gradveil.models import architectures
from gradveil.models.training import PRESETS, Training
from gradveil.obscuring import bound
from gradveil.registry import Registry, parse_settings
from gradveil.types import Knowledge, LocalTraining, Mode

T = TypeVar("T")
STATES = ("untrained", "trained", "trained-with-defense")
SHORT_TRAINING = Training(epochs=10, optimizer="adam", lr=0.01, weight_decay=0.0)
_TABLES = ("audit", "training", "local")
_LEAST = {
    "victims": 1, "batch_size": 1, "decoys": 1, "null_victims": 0, "start": -1, "auxiliary_images": 1, "tune_steps": 0,
    "tune_victims": 2,
}  # fmt: skip
SPLITS = ("test", "train")
TUNE_RULES = ("identification", "psnr")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """A grid of audits: every model, state, defense and attack with each other, and who knows each defense beside them.

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
        knowledge: granted to the adversary: labels, buffers, local-training, defenses, auxiliary; by default all but
            those of the client's side, as a careful audit assumes.
        adaptive: attack every defense twice, by the listed attacks, which then do not know of it unless they must,
            and by the informed adversary that the defense names.
        adversaries: settings of informed adversaries, such as `inverting-gradients:steps=4800`, where they differ
            from the listed attack of the same name or from the defaults.
        tune: choose the settings of every attack on victims that the adversary simulates from its public images.
        tune_steps: of every attack in that search; 0 for its own, which the chosen one has again.
        tune_victims: that are simulated.
        tune_rule: what decides, `identification` or `psnr`.
        auxiliary: public images of the adversary, where it has some: empty for images of the attacked split that are
            neither victims nor decoys, so that a trained network knows them as well as the private ones; `train` or
            `test` for a split of the private data set, or another data set.
        auxiliary_images: how many; fewer where a split is too small to leave as many decoys.
        pool: images that defenses of the data may draw from, `train`, `test` or a data set; empty for the split that
            is not attacked.
        generator: checkpoint of a generator of images, for the adversary; empty for none.
        extractor: checkpoint of a network whose features the adversary uses; empty for none.
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
    knowledge: tuple[str, ...] = ("labels", "defenses", "auxiliary")
    adaptive: bool = True
    adversaries: tuple[str, ...] = ()
    tune: bool = False
    tune_steps: int = 0
    tune_victims: int = 8
    tune_rule: Literal["identification", "psnr"] = "identification"
    auxiliary: str = ""
    auxiliary_images: int = 1000
    pool: str = ""
    generator: str = ""
    extractor: str = ""
    mode: Mode = "eval"
    seed: int = 0
    model_seed: int = 0
    normalize: bool = True
    decoys: int = 1000
    null_victims: int = 8
    precision: Precision = "tf32"
    deterministic: bool = False
    training: Training = SHORT_TRAINING
    local: LocalTraining = field(default_factory=LocalTraining)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise SpecError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("seed", "model_seed"):
            if not 0 <= getattr(self, name) < 2**63:
                raise SpecError(f"{name} must be at least 0 and below 2^63, got {getattr(self, name)}")
        for name in ("models", "states", "defenses", "attacks", "metrics"):
            if not getattr(self, name):
                raise SpecError(f"{name} must name at least one; give a list")
        choices = {
            "split": SPLITS,
            "tune_rule": TUNE_RULES,
            "mode": get_args(Mode),
            "precision": get_args(Precision),
        }
        for name, options in choices.items():
            if getattr(self, name) not in options:
                raise SpecError(f"{name} must be one of {', '.join(options)}, got '{getattr(self, name)}'")
        self._build_everything()

    def _build_everything(self) -> None:
        """Make every object once, so that a mistake shows before anything runs."""
        public = [name for name in ("auxiliary", "generator", "extractor", "tune") if getattr(self, name)]
        if public and Knowledge.AUXILIARY not in parse_knowledge(self.knowledge):
            raise SpecError(f"{public[0]} is for an adversary who has public material; add auxiliary to knowledge")
        for source in (self.dataset, *(name for name in (self.auxiliary, self.pool) if name not in {"", *SPLITS})):
            build(sources, source)
        for state in self.states:
            if state not in STATES and not state.startswith("checkpoint:"):
                raise unknown_name("model state", state, [*STATES, "checkpoint:PATH"])
        for model in self.models:
            build(architectures, model)
        for metric in self.metrics:
            build(metrics, metric)
        for adversary in self.adversaries:
            build(attacks, adversary)
        for cell in self.cells():
            cell.build_attack()
            cell.build_defenses()

    def cells(self) -> tuple["Cell", ...]:
        """List the grid, models first, attacks last; behind the listed attacks come the informed ones."""
        axes = (self.models, self.states, self.defenses)
        grid = itertools.product(*(dict.fromkeys(axis) for axis in axes))
        return tuple(
            Cell(model=m, state=s, defenses=d, attack=attack, adaptive=adaptive)
            for m, s, d in grid
            for attack, adaptive in self._attacks_on(d)
        )

    def _attacks_on(self, defenses: str) -> list[tuple[str, bool]]:
        """List the attacks on some defenses, and whether each is an informed one that nobody listed."""
        listed = {text: build(attacks, text) for text in dict.fromkeys(self.attacks)}
        granted = Knowledge.DEFENSES in parse_knowledge(self.knowledge)
        aware = {attacks.describe(a) for a in listed.values() if granted and Knowledge.DEFENSES in a.requires}
        named = dict.fromkeys(found.attack for found in self.informed(defenses) if found.attack)
        return [*((text, False) for text in listed), *((text, True) for text in named if text not in aware)]

    def informed(self, defenses: str) -> tuple[Informed, ...]:
        """Find who attacks each of some defenses with knowledge of it; empty if the audit is not adaptive."""
        if not self.adaptive:
            return ()
        settings, granted = (*self.adversaries, *self.attacks), parse_knowledge(self.knowledge)
        return informed(build_defenses(defenses), settings=settings, knowledge=granted)

    def knowledge_of(self, cell: "Cell") -> Knowledge:
        """Return what the adversary of a cell is granted.

        In an adaptive audit the informed adversary knows the defenses, and the listed attack does so only if it cannot
        do without.
        """
        granted = parse_knowledge(self.knowledge)
        if cell.adaptive:
            return granted | Knowledge.DEFENSES
        if self.adaptive and Knowledge.DEFENSES not in cell.build_attack().requires:
            return granted & ~Knowledge.DEFENSES
        return granted

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by table, as in a spec file; `spec_from` reads them back."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        beside = {name: values.pop(name) for name in ("training", "local")}
        return {"audit": values, **beside}

    def to_toml(self) -> str:
        """Write a spec file."""
        tables = []
        for table, values in self.to_dict().items():
            lines = [
                f"{name} = {json.dumps(value, ensure_ascii=False)}"
                for name, value in values.items()
                if value is not None
            ]
            tables.append("\n".join([f"[{table}]", *lines]))
        return "\n\n".join(tables) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One audit of a grid, as spec strings; `adaptive` marks the informed adversary that a defense names."""

    model: str
    state: str
    defenses: str
    attack: str
    adaptive: bool = False

    @property
    def name(self) -> str:
        """A file name that people can read and that no other cell has."""
        parts = (self.model, self.state, self.defenses, self.attack, *(["informed"] if self.adaptive else []))
        text, words = "|".join(parts), re.sub(r"[^a-zA-Z0-9.]+", "-", "-".join(parts))
        return f"{words.strip('-')[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def title(self) -> str:
        """For people."""
        who = f"{self.attack}, informed," if self.adaptive else self.attack
        return f"{who} on {self.model} ({self.state}), defense: {self.defenses}"

    def build_attack(self) -> Attack:
        """Make the attack."""
        return build(attacks, self.attack)

    def build_defenses(self) -> tuple[Defense, ...]:
        """Make the defenses, in order."""
        return build_defenses(self.defenses)


def build_defenses(text: str) -> tuple[Defense, ...]:
    """Make the defenses of `none`, `name:field=value` or several joined by ` + `, in order.

    Example:
        >>> len(build_defenses("pruning + gaussian-noise:std=0.1"))
        2
    """
    if text.strip() == "none":
        return ()
    made = tuple(build(defenses, part.strip()) for part in text.split(" + "))
    steps = [defenses.name_of(defense) for defense in made if isinstance(defense, StepDefense)]
    if len(steps) > 1:
        raise SpecError(f"'{text}': one step can be computed in one way only, got {' and '.join(steps)}; keep one")
    return made


def build(registry: Registry[T], text: str) -> T:
    """Build a method from its spec string; a value that its constructor refuses is a mistake in the spec.

    A file that the string names, such as the extractor of a defense, is loaded.
    """
    try:
        return bound(registry.build(text))
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
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(
            f"there is no spec file at {path}; see `gradveil audit --help` for the flags instead"
        ) from error
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}); give a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error
    return spec_from(content)


def spec_from(content: Mapping[str, Any]) -> AuditSpec:
    """Make a spec from plain values: the table [audit], and [training] and [local] beside it."""
    for name, table in content.items():
        if name not in _TABLES:
            raise unknown_name("table of a spec file", name, _TABLES)
        if not isinstance(table, Mapping):
            raise SpecError(f"{name} must be a table, got {table!r}; write [{name}] and its settings below")
    values, training, local = (dict(content.get(name, {})) for name in _TABLES)
    preset = training.pop("preset", None)
    made = _fill(AuditSpec, values, "audit")
    if preset is not None or training:
        base = SHORT_TRAINING if preset is None else _preset(preset)
        made["training"] = _make(Training, {**_fields(base), **_fill(Training, training, "training")}, "training")
    if local:
        made["local"] = _make(LocalTraining, _fill(LocalTraining, local, "local"), "local")
    return _make(AuditSpec, made, "audit")


def build_training(preset: str, settings: str) -> Training:
    """Make training settings from the name of a preset and `field=value,...` over it.

    Example:
        >>> build_training("fast", "epochs=3,lr=0.1").epochs
        3
    """
    values = parse_settings(Training, settings, "training")
    return _make(Training, {**_fields(_preset(preset)), **values}, "training")


def _preset(name: object) -> Training:
    if name not in PRESETS:
        raise unknown_name("training preset", str(name), PRESETS)
    return PRESETS[str(name)]


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _fill(kind: type, values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Check names and types against the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind) if f.name not in _TABLES]
    made: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            raise unknown_name(f"setting of [{table}]", key, known)
        made[name] = _checked(hints[name], value, f"[{table}] {key}")
    return made


def _checked(kind: Any, value: Any, where: str) -> Any:
    origin, options = typing.get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return (
            None
            if value is None
            else _checked(next(option for option in options if option is not type(None)), value, where)
        )
    if origin is tuple:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise SpecError(f"{where} must be a text or a list of texts, got {value!r}")
        return tuple(values)
    if origin is Literal:
        if value not in options:
            raise SpecError(f"{where} must be one of {', '.join(options)}, got {value!r}")
        return value
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise SpecError(f"{where} must be {_KINDS[kind]}, got {value!r}")
    return float(value) if kind is float else value


def _make(kind: type[T], values: dict[str, Any], table: str) -> T:
    try:
        return kind(**values)
    except GradVeilError:
        raise
    except (ValueError, TypeError) as error:
        raise SpecError(f"[{table}]: {error}") from error
