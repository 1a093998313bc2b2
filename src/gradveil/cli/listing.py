"""`gradveil list`."""

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.table import Table

from gradveil.attacks import attacks
from gradveil.cli._show import output
from gradveil.data import sources
from gradveil.defenses import defenses
from gradveil.errors import unknown_name
from gradveil.metrics import metrics
from gradveil.models import architectures
from gradveil.registry import Registry
from gradveil.types import Paper

KINDS: dict[str, Registry[Any]] = {
    "attacks": attacks,
    "defenses": defenses,
    "metrics": metrics,
    "models": architectures,
    "datasets": sources,
}


def command(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))] = "attacks",
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """List what is in: names, settings, papers, threat models."""
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    rows = [entry(KINDS[kind], name) for name in KINDS[kind].names()]
    if as_json:
        output.print_json(json.dumps(rows))
        return
    table = Table(*(column.replace("_", " ") for column in rows[0]), title=kind, title_justify="left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    output.print(table)


def entry(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Describe one method from its class alone."""
    leaf = registry.get(name)
    facts: dict[str, Any] = {"name": name, "what it does": (leaf.__doc__ or "").strip().splitlines()[0]}
    if hasattr(leaf, "requires"):
        facts |= {"threat": leaf.threat, "needs": ", ".join(leaf.requires.names()) or "nothing"}
    if hasattr(leaf, "adversary"):
        facts["adaptive adversary"] = leaf.adversary.attack or "none built"
    paper = getattr(leaf, "paper", None)
    if isinstance(paper, Paper):
        facts["paper"] = f"{paper.authors.split(',')[0]} {paper.year}"
    facts["settings"] = {f.name: _default(f) for f in dataclasses.fields(leaf) if f.init}
    return facts


def _default(field: "dataclasses.Field[Any]") -> Any:
    value = field.default if field.default is not dataclasses.MISSING else "required"
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def _cell(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
