"""The spec of an artefact: three sizes of one experiment, its parts, and which number goes into which cell."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from gradveil.errors import unknown_name
from gradveil.reproducing._short_forms import blocks_of, parts_of, read_spec, substitute

Size: TypeAlias = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
_TABLES = (*SIZES, "words", "each", "columns", "shared", "parts", "values", "without")
_VALUES = ("part", "column", "take", "rows", "by", "where", "unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run of an experiment, of one kind, with a folder of its own.

    Args:
        name: of its folder.
        kind: such as `audit`, `federation` or `search`.
        tables: settings by table, as the kind reads them.
        checkpoint: name of a network that may have been trained elsewhere; empty for none.
    """

    name: str
    kind: str
    tables: Mapping[str, Mapping[str, Any]]
    checkpoint: str = ""

    def table(self, name: str) -> dict[str, Any]:
        """Return a copy of a table; empty if there is none."""
        return dict(self.tables.get(name, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A cell of the paper's table, and where our number comes from.

    Args:
        row: of the table.
        column: of the table.
        part: whose records hold it.
        take: what to read off them, as the kind of the part understands it.
        match: which of its records, patterns by field.
        unit: `%` multiplies shares by 100.
    """

    row: str
    column: str
    part: str
    take: str
    match: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An experiment in one size.

    Args:
        size: smoke, small or paper.
        words: what the size puts into the parts, such as the number of victims.
        parts: in the order in which they run.
        wanted: cells of the table.
    """

    size: Size
    words: Mapping[str, Any]
    parts: tuple[Part, ...]
    wanted: tuple[Wanted, ...]


def read_plan(file: Path, size: Size, *, out: Path) -> Plan:
    """Read a spec in one size.

    Args:
        file: `spec.toml` of an artefact.
        size: whose table fills in the `$words` of the parts.
        out: run folder, the word `$out`.
    """
    content = read_spec(file)
    for name in content:
        if name not in _TABLES:
            raise unknown_name(f"table of {file}", name, _TABLES)
    if size not in SIZES or size not in content:
        raise unknown_name("size", size, [name for name in SIZES if name in content])
    words = {**content.get("words", {}), **content[size]}
    known, series = {**words, "out": str(out)}, content.get("each", {})
    shared = substitute(content.get("shared", {}), known)
    parts = [_part(name, table, shared) for name, table in parts_of(content["parts"], series, known).items()]
    blocks = blocks_of(content.get("values", []), content.get("columns", {}), series, known)
    wanted, names = list(_wanted(blocks, file)), [part.name for part in parts]
    for name in [*content.get("without", []), *(one.part for one in wanted)]:
        if name not in names:
            raise unknown_name(f"part of {file}", name, names)
    left_out = set(content.get("without", []))
    parts = [part for part in parts if part.name not in left_out]
    wanted = [one for one in wanted if one.part not in left_out]
    return Plan(size=size, words=words, parts=tuple(parts), wanted=tuple(wanted))


def _part(name: str, table: Mapping[str, Any], shared: Mapping[str, Any]) -> Part:
    """Lay the tables of a part over those that all parts share."""
    own = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key in table:
        if key not in own and key not in {"kind", "checkpoint"}:
            raise unknown_name(f"setting of part {name}", key, ("kind", "checkpoint", "a table"))
    tables = {key: {**shared.get(key, {}), **own.get(key, {})} for key in dict.fromkeys((*shared, *own))}
    return Part(name=name, kind=str(table["kind"]), tables=tables, checkpoint=str(table.get("checkpoint", "")))


def _wanted(blocks: Iterable[Mapping[str, Any]], file: Path) -> Iterator[Wanted]:
    """List the cells of all blocks: in each, the rows of one column."""
    for block in blocks:
        for key in block:
            if key not in _VALUES:
                raise unknown_name(f"setting of [[values]] in {file}", key, _VALUES)
        for row, chosen in block["rows"].items():
            by = block.get("by", "defenses")
            yield Wanted(
                row=row,
                column=block["column"],
                part=block["part"],
                take=block["take"],
                match={**block.get("where", {}), by: chosen},
                unit=block.get("unit", ""),
            )
