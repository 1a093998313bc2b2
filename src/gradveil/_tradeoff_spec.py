"""What a trade-off study sweeps: mechanisms, each a defense with one setting of many values, over one audit."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil.defenses import defenses
from gradveil.errors import SpecError, unknown_name
from gradveil.spec import AuditSpec, build_defenses, spec_from

STUDY_AUDIT = AuditSpec(attacks=("dlg",), knowledge=("defenses", "auxiliary"), victims=20)
"""The audit of a study unless told otherwise; labels are not granted, because membership is about finding them."""

_OWN = ("mechanism", "tradeoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A defense whose strength is swept.

    Args:
        defense: spec string without the swept setting, such as `gaussian-noise` or `ppdl:theta=0.05 + gaussian-noise`.
        field: the setting that says how strong it is; of several defenses, one alone may have it.
        values: of that setting, as they are written in spec strings.
        name: for people; the defense and the setting if empty.
        accuracies: of protected networks, one per value, where they were measured elsewhere, such as by federations;
            if there are none, a network is trained under each strength.
    """

    defense: str
    field: str
    values: tuple[str, ...]
    name: str = ""
    accuracies: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise SpecError(f"{self.title} needs values that differ, got {', '.join(self.values) or 'none'}")
        if self.accuracies and len(self.accuracies) != len(self.values):
            came = f"{len(self.accuracies)} for {len(self.values)}"
            raise SpecError(f"{self.title} needs one accuracy per value, got {came}; leave them out to train")
        for strength in self.strengths():
            build_defenses(strength)

    @property
    def title(self) -> str:
        """For people."""
        return self.name or f"{self.defense}, {self.field}"

    def strengths(self) -> tuple[str, ...]:
        """Return the spec string of the defenses at each value.

        Example:
            >>> Mechanism(defense="pruning + gaussian-noise", field="std", values=("0.1",)).strengths()
            ('pruning + gaussian-noise:std=0.1',)
        """
        parts = [part.strip() for part in self.defense.split(" + ")]
        owners = [number for number, part in enumerate(parts) if self.field in _settings(part)]
        if len(owners) != 1:
            known = sorted({name for part in parts for name in _settings(part)})
            if not owners:
                raise unknown_name(f"setting of {self.defense}", self.field, known)
            raise SpecError(f"{len(owners)} of '{self.defense}' have a setting {self.field}; sweep one that one has")
        return tuple(" + ".join(_with(parts, owners[0], f"{self.field}={value}")) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffSpec:
    """A trade-off study.

    Args:
        mechanisms: to compare.
        seeds: how many times all of it is run, each with its own victims, weights and noise.
        participants: that the victims are dealt to, for tracing.
        queries: images whose participant is asked for, at most; those beyond the private ones come from the same split.
        audit: model, state under attack, attacks and victims; its defenses are those of the mechanisms.
    """

    mechanisms: tuple[Mechanism, ...]
    seeds: int = 1
    participants: int = 10
    queries: int = 10_000
    audit: AuditSpec = STUDY_AUDIT

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise SpecError("a trade-off needs at least 1 mechanism; name a defense, a field and values")
        for name, least in (("seeds", 1), ("participants", 2), ("queries", 1)):
            if getattr(self, name) < least:
                raise SpecError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.participants > self.audit.victims:
            need = f"{self.participants} participants need an update each, got {self.audit.victims} victims"
            raise SpecError(f"{need}; ask for more victims or fewer participants")
        for name in ("models", "states"):
            if len(getattr(self.audit, name)) != 1:
                raise SpecError(f"a trade-off attacks one of {name}, got {', '.join(getattr(self.audit, name))}")
        if self.audit.defenses != ("none",):
            raise SpecError("the defenses of a trade-off are those of its mechanisms; leave them out of [audit]")

    def strengths(self) -> tuple[str, ...]:
        """List the defenses of all mechanisms at all strengths, each once."""
        return tuple(dict.fromkeys(text for mechanism in self.mechanisms for text in mechanism.strengths()))

    def audit_of(self, number: int) -> AuditSpec:
        """Return the audit of one seed, counted from 0: the next private images, other weights and other noise."""
        audit, images = self.audit, self.audit.victims * self.audit.batch_size
        plain = [name for name in audit.metrics if name.partition(":")[0] != "rmse"]
        return dataclasses.replace(
            audit,
            defenses=("none", *(text for text in self.strengths() if text != "none")),
            metrics=(*plain, "rmse"),
            seed=audit.seed + number,
            model_seed=audit.model_seed + number,
            start=audit.start + number * images if audit.start >= 0 else audit.start,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as in a spec file; `tradeoff_from` reads them back."""
        study = {name: getattr(self, name) for name in ("seeds", "participants", "queries")}
        mechanisms = json.loads(json.dumps([dataclasses.asdict(mechanism) for mechanism in self.mechanisms]))
        return {"mechanism": mechanisms, "tradeoff": study, **self.audit.to_dict()}

    def to_toml(self) -> str:
        """Write a spec file."""
        content = self.to_dict()
        tables = [f"[[mechanism]]\n{_lines(mechanism)}" for mechanism in content["mechanism"]]
        return "\n\n".join([*tables, f"[tradeoff]\n{_lines(content['tradeoff'])}", self.audit.to_toml()])


def read_tradeoff_spec(path: Path) -> TradeoffSpec:
    """Read a spec file: tables [[mechanism]] and [tradeoff], and those of an audit."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}); give a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error
    return tradeoff_from(content)


def tradeoff_from(content: Mapping[str, Any]) -> TradeoffSpec:
    """Make a spec from plain values; settings of [audit] that are left out are those of `STUDY_AUDIT`."""
    tables = {name: table for name, table in content.items() if name not in _OWN}
    base = STUDY_AUDIT.to_dict()
    if isinstance(tables.get("audit", {}), dict):
        tables["audit"] = base["audit"] | {k.replace("-", "_"): v for k, v in tables.get("audit", {}).items()}
    mechanisms, study = content.get("mechanism", []), content.get("tradeoff", {})
    if not isinstance(mechanisms, list) or not isinstance(study, dict):
        raise SpecError("write each mechanism below [[mechanism]] and the study below [tradeoff]")
    return TradeoffSpec(
        mechanisms=tuple(_mechanism(values) for values in mechanisms),
        audit=spec_from(tables),
        **_checked(study, {"seeds": int, "participants": int, "queries": int}, "[tradeoff]"),
    )


def _mechanism(values: Mapping[str, Any]) -> Mechanism:
    kinds = {"defense": str, "field": str, "values": list, "name": str, "accuracies": list}
    made = _checked(values, kinds, "[[mechanism]]")
    missing = [name for name in ("defense", "field", "values") if name not in made]
    if missing:
        raise SpecError(f"[[mechanism]] needs {', '.join(missing)}")
    numbers = made.get("accuracies", [])
    if not all(isinstance(number, int | float) and 0 <= number <= 1 for number in numbers):
        raise SpecError(f"[[mechanism]] accuracies must be numbers from 0 to 1, got {numbers}")
    texts = tuple(value if isinstance(value, str) else f"{value:g}" for value in made["values"])
    return Mechanism(**{**made, "values": texts, "accuracies": tuple(map(float, numbers))})


def _checked(values: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> dict[str, Any]:
    for name, value in values.items():
        if name not in kinds:
            raise unknown_name(f"setting of {where}", name, kinds)
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise SpecError(f"{where} {name} must be of type {kinds[name].__name__}, got {value!r}")
    return dict(values)


def _settings(part: str) -> tuple[str, ...]:
    """Name the settings of a defense that a spec string leaves open."""
    name, _, given = part.partition(":")
    known = [f.name for f in dataclasses.fields(defenses.get(name.strip())) if f.init]  # type: ignore[arg-type]
    set_already = [setting.partition("=")[0].strip().replace("-", "_") for setting in given.split(",")]
    return tuple(name for name in known if name not in set_already)


def _with(parts: list[str], owner: int, setting: str) -> list[str]:
    joint = "," if ":" in parts[owner] else ":"
    return [f"{part}{joint}{setting}" if number == owner else part for number, part in enumerate(parts)]


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
