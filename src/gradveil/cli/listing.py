"""`gradveil list`."""

import dataclasses
import inspect
import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gradveil.attacks import attacks, decoders
from gradveil.cli._show import output
from gradveil.data import sources
from gradveil.defenses import defenses
from gradveil.errors import unknown_name
from gradveil.metrics import metrics
from gradveil.models import architectures
from gradveil.registry import Registry
from gradveil.types import Card, Paper

KINDS: dict[str, Registry[Any]] = {
    "attacks": attacks,
    "decoders": decoders,
    "defenses": defenses,
    "metrics": metrics,
    "models": architectures,
    "datasets": sources,
}
QUESTIONS = {
    "fails": "When it fails",
    "costs": "What it costs",
    "suggested": "Settings to start from",
    "interacts": "What it interacts with",
}


def command(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))] = "attacks",
    name: Annotated[str, typer.Argument(help="of one method, to see its card")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """List what is in: names, settings, papers, threat models; with a name, all there is to know about one."""
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    if name:
        _show_card(card(KINDS[kind], name), as_json=as_json)
        return
    rows = [entry(KINDS[kind], name) for name in KINDS[kind].names()]
    if as_json:
        output.print_json(json.dumps(rows))
        return
    columns = max(rows, key=len)  # a method without a paper has no such entry
    table = Table(*(column.replace("_", " ") for column in columns), title=kind, title_justify="left")
    for row in rows:
        table.add_row(*(_cell(row.get(column, "–")) for column in columns))
    output.print(table)


def entry(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Describe one method from its class alone."""
    leaf = registry.get(name)
    facts: dict[str, Any] = {"name": name, "what it does": (leaf.__doc__ or "").strip().splitlines()[0]}
    if hasattr(leaf, "threat"):
        facts["threat"] = leaf.threat
    if hasattr(leaf, "requires"):
        facts["needs"] = ", ".join(leaf.requires.names()) or "nothing"
    if hasattr(leaf, "batches"):
        facts["batch sizes"] = leaf.batches
    if hasattr(leaf, "adversary"):
        facts["adaptive adversary"] = leaf.adversary.attack or "none built"
    paper = getattr(leaf, "paper", None)
    if isinstance(paper, Paper):
        facts["paper"] = f"{paper.authors.split(',')[0]} {paper.year}"
    facts["settings"] = {f.name: _default(f) for f in dataclasses.fields(leaf) if f.init}
    return facts


def card(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Say all there is to know about one method: what it does, its paper, its card, its settings and their meaning.

    Example:
        >>> card(attacks, "dlg")["name"]
        'dlg'
    """
    leaf = registry.get(name)
    facts = entry(registry, name)
    settings = facts.pop("settings")
    does, arguments = _documented(leaf)
    facts["what it does"] = does
    paper = getattr(leaf, "paper", None)
    if isinstance(paper, Paper):
        facts["paper"] = f"{paper.authors}: {paper.title} ({paper.year}), {paper.url}"
    if hasattr(leaf, "adversary"):
        facts["adaptive adversary"] = ": ".join(filter(None, (leaf.adversary.attack, leaf.adversary.reason)))
    found = getattr(leaf, "card", None)
    if isinstance(found, Card):
        facts |= {words: getattr(found, field) for field, words in QUESTIONS.items()}
    facts["settings"] = {field: _setting(value, arguments.get(field, "")) for field, value in settings.items()}
    return facts


def _documented(leaf: type) -> tuple[str, dict[str, str]]:
    """Split a docstring into what comes before its arguments, in paragraphs, and the words for each argument."""
    before, _, after = inspect.cleandoc(leaf.__doc__ or "").partition("\nArgs:\n")
    arguments: dict[str, str] = {}
    name = ""
    for line in after.partition("\n\n")[0].splitlines():
        field, colon, words = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            name, arguments[field] = field, words
        elif name:
            arguments[name] += f" {line.strip()}"
    return "\n".join(" ".join(part.split()) for part in before.split("\n\n") if part.strip()), arguments


def _setting(default: Any, words: str) -> str:
    return f"{default}: {words}" if words else str(default)


def _show_card(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(json.dumps(facts))
        return
    table = Table(show_header=False, box=None, pad_edge=False, title=facts.pop("name"), title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    settings = facts.pop("settings")
    for question, answer in (*facts.items(), *((f"  {name}", words) for name, words in settings.items())):
        table.add_row(Text(question), Text(str(answer)))
    output.print(table)


def _default(field: "dataclasses.Field[Any]") -> Any:
    value = field.default if field.default is not dataclasses.MISSING else "required"
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def _cell(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
