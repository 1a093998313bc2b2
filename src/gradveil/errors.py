"""The errors GradVeil raises on purpose; each says what was expected, what came, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class GradVeilError(Exception):
    """Base of all errors that a user can mend; the command line shows it as one sentence."""


class KnowledgeError(GradVeilError):
    """An attack asks for something that the threat model does not grant."""


class UnknownNameError(GradVeilError):
    """A name that no registry holds."""


class SpecError(GradVeilError):
    """A specification that cannot be run."""


class DataError(GradVeilError):
    """A data set or batch that is missing, malformed or out of range."""


class RecordError(GradVeilError):
    """A record or run folder that cannot be read or written."""


class UnsupportedModelError(GradVeilError):
    """A network with an operation that the engine cannot differentiate for many victims at once."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Make the error for an unknown name, with the nearest known ones."""
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known) or 'none'}"
    return UnknownNameError(f"there is no {kind} called '{name}'; {advice}")
