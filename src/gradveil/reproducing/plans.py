"""The spec of an artefact: three sizes of one experiment, its parts, and which number goes into which cell."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from gradveil.errors import SpecError, unknown_name

Size: TypeAlias = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
_TABLES = (*SIZES, "shared", "parts", "values")
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
    content = _load(file)
    for name in content:
        if name not in _TABLES:
            raise unknown_name(f"table of {file}", name, _TABLES)
    if size not in SIZES or size not in content:
        raise unknown_name("size", size, [name for name in SIZES if name in content])
    words = dict(content[size])
    filled = substitute({name: content.get(name, {}) for name in ("shared", "parts")}, {**words, "out": str(out)})
    parts = tuple(_part(name, table, filled["shared"]) for name, table in filled["parts"].items())
    wanted = tuple(_wanted(substitute(content.get("values", []), {**words, "out": str(out)}), file))
    known = [part.name for part in parts]
    for one in wanted:
        if one.part not in known:
            raise unknown_name(f"part of {file}", one.part, known)
    return Plan(size=size, words=words, parts=parts, wanted=wanted)


def substitute(value: Any, words: Mapping[str, Any]) -> Any:
    """Put words in the place of `$word`; a text that is nothing but one takes its type.

    Example:
        >>> substitute({"victims": "$n", "attacks": ["dlg:steps=$n"]}, {"n": 3})
        {'victims': 3, 'attacks': ['dlg:steps=3']}
    """
    if isinstance(value, Mapping):
        return {key: substitute(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, words) for item in value]
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\$(\w+)", value)
    if whole:
        return _word(whole, words)
    return re.sub(r"\$(\w+)", lambda found: str(_word(found, words)), value)


def _word(found: "re.Match[str]", words: Mapping[str, Any]) -> Any:
    if found[1] not in words:
        raise unknown_name("word of the size", found[1], words)
    return words[found[1]]


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"there is no spec at {file}; `gradveil reproduce --list` shows what is built") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} is not valid TOML: {error}") from error


def _part(name: str, table: Mapping[str, Any], shared: Mapping[str, Any]) -> Part:
    """Lay the tables of a part over those that all parts share."""
    own = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key in table:
        if key not in own and key not in {"kind", "checkpoint"}:
            raise unknown_name(f"setting of part {name}", key, ("kind", "checkpoint", "a table"))
    tables = {key: {**shared.get(key, {}), **own.get(key, {})} for key in dict.fromkeys((*shared, *own))}
    return Part(name=name, kind=str(table["kind"]), tables=tables, checkpoint=str(table.get("checkpoint", "")))


def _wanted(blocks: Sequence[Mapping[str, Any]], file: Path) -> Iterator[Wanted]:
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
