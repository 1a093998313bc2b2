"""Write the catalogue and the method cards from the registries, so that they cannot fall behind the code."""

from pathlib import Path
from typing import Any

from gradveil.cli.listing import KINDS, QUESTIONS, card, entry

HERE = Path(__file__).parent
CARDS = ("attacks", "defenses")


def page() -> str:
    """Return the catalogue as Markdown."""
    lines = ["# Catalogue", "", "Made from the code by `make docs`; the same as `gradveil list KIND`.", ""]
    for kind, registry in KINDS.items():
        rows = [entry(registry, name) for name in registry.names()]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines += [f"## {kind}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_linked(kind, row, column) for column in columns) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def cards(kind: str) -> str:
    """Return the cards of all methods of a kind as Markdown."""
    lines = [f"# Cards: {kind}", "", f"Made from the code by `make docs`; the same as `gradveil list {kind} NAME`.", ""]
    for name in KINDS[kind].names():
        lines += [f"## {name}", "", *_card(card(KINDS[kind], name))]
    return "\n".join(lines)


def _card(facts: dict[str, Any]) -> list[str]:
    does, settings = facts["what it does"].split("\n"), facts["settings"]
    beside = [name for name in facts if name not in {"name", "what it does", "settings", *QUESTIONS.values()}]
    lines = [line for paragraph in does for line in (_text(paragraph), "")]
    lines += [f"- **{name}**: {_text(facts[name])}" for name in beside]
    lines += [f"- **{words}**: {_text(facts[words])}" for words in QUESTIONS.values() if words in facts]
    lines += [f"- `{name}` = {_text(words)}" for name, words in settings.items()]
    return [*lines, ""]


def _linked(kind: str, row: dict[str, Any], column: str) -> str:
    text = _text(row.get(column, ""))
    return f"[{text}](cards-{kind}.md#{text})" if column == "name" and kind in CARDS else text


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"`{name}={default}`" for name, default in value.items())
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    (HERE / "catalogue.md").write_text(page())
    for kind in CARDS:
        (HERE / f"cards-{kind}.md").write_text(cards(kind))
