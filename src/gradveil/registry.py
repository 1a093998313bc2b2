"""Names for methods: the file `attacks/inverting_gradients.py` is `inverting-gradients` everywhere.

A method is written `name` or `name:field=value,field=value`; a value without a field name fills the first field.
"""

import dataclasses
import importlib
import math
import pkgutil
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from gradveil.errors import SpecError, UnknownNameError, unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The methods of one folder, found by file name.

    Args:
        kind: what they are called in messages, such as `attack`.
        package: dotted name of the folder; files that begin with an underscore are not methods.
        base: the class that every method derives from.
    """

    kind: str
    package: str
    base: type[T]

    def names(self) -> tuple[str, ...]:
        """List all names, sorted."""
        return tuple(sorted(_modules(self.package)))

    def get(self, name: str) -> type[T]:
        """Return the class behind a name."""
        modules = _modules(self.package)
        if name == "import":
            raise UnknownNameError(f"no {self.kind} is imported here; give one of your own to gradveil.audit in Python")
        if name not in modules:
            raise unknown_name(self.kind, name, modules)
        module = importlib.import_module(modules[name])
        found = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        (leaf,) = [c for c in found if issubclass(c, self.base) and not getattr(c, "__abstractmethods__", None)]
        return leaf

    def build(self, text: str) -> T:
        """Make an object from `name:field=value,...`, with values checked against the types of the fields."""
        name, _, settings = text.partition(":")
        leaf = self.get(name.strip())
        return leaf(**parse_settings(leaf, settings, f"{self.kind} {name.strip()}"))

    def name_of(self, method: object) -> str:
        """Return the name of an object or class; one from elsewhere, which no text can name, goes by its class."""
        leaf = method if isinstance(method, type) else type(method)
        if not leaf.__module__.startswith(f"{self.package}."):
            return leaf.__name__
        return leaf.__module__.rpartition(".")[2].replace("_", "-")

    def describe(self, method: object) -> str:
        """Write an object as `name:field=value,...` with every field that is not at its default."""
        changed = []
        for field in dataclasses.fields(method):  # type: ignore[arg-type]
            value = getattr(method, field.name)
            if value != field.default:
                changed.append(f"{field.name}={_show(value)}")
        return ":".join([self.name_of(method), *([",".join(changed)] if changed else [])])


def parse_settings(leaf: type, settings: str, where: str) -> dict[str, Any]:
    """Turn `field=value,...` into arguments for a dataclass."""
    hints = typing.get_type_hints(leaf)
    known = [f.name for f in dataclasses.fields(leaf) if f.init]
    arguments: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in settings.split(","))):
        field, equals, value = part.partition("=")
        if not equals:
            if arguments or not known:
                raise SpecError(f"'{part}' in {where} needs a field name, such as {'=..., '.join(known) or 'none'}=...")
            field, value = known[0], part
        field = field.strip().replace("-", "_")
        if field not in known:
            raise unknown_name(f"setting of {where}", field, known)
        if field in arguments:
            raise SpecError(f"{where} gets {field} twice; give it once")
        arguments[field] = convert(value.strip(), hints[field], f"{where}: {field}")
    return arguments


def convert(text: str, kind: Any, where: str) -> Any:
    """Read a value as the type of its field: bool, int, float, str, a literal, an optional or a tuple (`1+2+3`)."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        if text.lower() == "none" and type(None) in options:
            return None
        return convert(text, next(o for o in options if o is not type(None)), where)
    if origin is typing.Literal:
        if text in map(str, options):
            return next(o for o in options if str(o) == text)
        raise SpecError(f"{where} must be one of {', '.join(map(str, options))}, got '{text}'")
    if origin is tuple:
        items = re.split(r"(?<![eE])\+", text)  # the plus of an exponent separates nothing
        return tuple(convert(item, options[0], where) for item in items if item)
    return _convert_plain(text, kind, where)


def _convert_plain(text: str, kind: Any, where: str) -> Any:
    if kind is bool:
        if text.lower() in {"true", "yes", "on", "1", "false", "no", "off", "0"}:
            return text.lower() in {"true", "yes", "on", "1"}
        raise SpecError(f"{where} must be true or false, got '{text}'")
    try:
        whole = kind is int and re.fullmatch(r"[+-]?\d+", text) is None and float(text) == int(float(text))
        value = int(float(text)) if whole else kind(text)
    except (ValueError, TypeError, OverflowError):
        raise SpecError(f"{where} must be of type {getattr(kind, '__name__', kind)}, got '{text}'") from None
    if isinstance(value, float) and math.isnan(value):
        raise SpecError(f"{where} must be a number, got '{text}'")
    return value


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


@cache
def _modules(package: str) -> dict[str, str]:
    paths = importlib.import_module(package).__path__
    found = [m.name for m in pkgutil.iter_modules(paths) if not m.name.startswith("_")]
    return {name.replace("_", "-"): f"{package}.{name}" for name in found}
