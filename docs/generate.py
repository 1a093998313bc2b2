"""Write the catalogue page from the registries, so that it cannot fall behind the code."""

from pathlib import Path

from gradveil.cli.listing import KINDS, entry

HERE = Path(__file__).parent


def page() -> str:
    """Return the catalogue as Markdown."""
    lines = ["# Catalogue", "", "Made from the code by `make docs`; the same as `gradveil list KIND`.", ""]
    for kind, registry in KINDS.items():
        rows = [entry(registry, name) for name in registry.names()]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines += [f"## {kind}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_text(row.get(column, "")) for column in columns) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"`{name}={default}`" for name, default in value.items())
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    (HERE / "catalogue.md").write_text(page())
