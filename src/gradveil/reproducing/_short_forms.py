"""Short forms in which the specs of experiments are written, so that nothing in them is written twice."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from gradveil.errors import SpecError, unknown_name

Table: TypeAlias = Mapping[str, Any]
Series: TypeAlias = Mapping[str, Sequence[Table]]
"""Lists of words by name, such as one entry for every number of clients."""

_WORD = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_CELL = ("take", "unit")


def read_spec(file: Path) -> dict[str, Any]:
    """Read a spec; one that is `like` another experiment's beside it is laid over that.

    Tables of both are joined entry by entry; of what is no table, its own takes the place of the other's.
    """
    own = _load(file)
    like = own.pop("like", "")
    if like == file.parent.name:
        raise SpecError(f"{file} is like itself; name another experiment")
    return _over(read_spec(file.parent.parent / like / file.name), own) if like else own


def substitute(value: Any, words: Table) -> Any:
    """Put words in the place of `$word` or `${word}`, in names too; a text that is nothing but one takes its type.

    Example:
        >>> substitute({"victims": "$n", "attacks": ["dlg:steps=${n}0"]}, {"n": 3})
        {'victims': 3, 'attacks': ['dlg:steps=30']}
    """
    if isinstance(value, Mapping):
        return {str(substitute(key, words)): substitute(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [substitute(item, words) for item in value]
    if not isinstance(value, str):
        return value
    whole = _WORD.fullmatch(value)
    if whole:
        return _word(whole, words)
    return _WORD.sub(lambda found: str(_word(found, words)), value)


def parts_of(tables: Mapping[str, Table], series: Series, words: Table) -> dict[str, Table]:
    """Fill in the words of all parts, by name; a part with `each` stands for one part per entry of that series.

    Example:
        >>> parts_of({"$n-clients": {"each": "sizes", "kind": "federation"}}, {"sizes": [{"n": 8}, {"n": 20}]}, {})
        {'8-clients': {'kind': 'federation'}, '20-clients': {'kind': 'federation'}}
    """
    filled: dict[str, Table] = {}
    for name, table in tables.items():
        for one in _each(table, series, words):
            filled |= substitute({name: _without_each(table)}, one)
    return filled


def blocks_of(
    blocks: Sequence[Table], columns: Mapping[str, Table], series: Series, words: Table
) -> Iterator[dict[str, Any]]:
    """Fill in the words of `[[values]]`, and list those of one column each.

    A block with `each` stands for one per entry of that series; one that names a set of `columns` in the place of
    `column`, `take` and `unit` for one per column of the set, whose words are filled in, too.
    """
    for block in blocks:
        for one in _each(block, series, words):
            filled = substitute(_without_each(block), one)
            if "columns" in filled:
                yield from _over_columns(filled, columns, one)
            else:
                yield filled


def _over_columns(block: dict[str, Any], columns: Mapping[str, Table], words: Table) -> Iterator[dict[str, Any]]:
    name = block.pop("columns")
    if name not in columns:
        raise unknown_name("set of columns", name, columns)
    for column, cell in substitute(columns[name], words).items():
        for key in cell:
            if key not in _CELL:
                raise unknown_name(f"setting of the column {column}", key, _CELL)
        yield {**block, "column": column, **cell}


def _each(table: Table, series: Series, words: Table) -> Iterator[dict[str, Any]]:
    """List the words of every entry of a table's series, or of every combination where it names several."""
    given = table.get("each", [])
    names = [given] if isinstance(given, str) else given
    for name in names:
        if name not in series:
            raise unknown_name("series", name, series)
    for entries in product(*(series[name] for name in names)):
        known = dict(words)
        for entry in entries:
            known |= substitute(entry, known)
        yield known


def _without_each(table: Table) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "each"}


def _over(base: Table, own: Table) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = _over(base[key], value) if both else value
    return merged


def _word(found: "re.Match[str]", words: Table) -> Any:
    name = found[1] or found[2]
    if name not in words:
        raise unknown_name("word of the size", name, words)
    return words[name]


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"there is no spec at {file}; `gradveil reproduce --list` shows what is built") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} is not valid TOML: {error}") from error
