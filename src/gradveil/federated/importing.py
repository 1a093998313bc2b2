"""Objects by import string."""

import importlib
from collections.abc import Callable
from typing import Any, Final

from gradveil.errors import SpecError

PREFIX: Final = "import:"


def import_object(text: str) -> Callable[..., Any]:
    """Return what `import:package.module:name` names; only the user's own settings may say it, never a file.

    Example:
        >>> import_object("import:math:sqrt")(9)
        3.0
    """
    module, _, name = text.removeprefix(PREFIX).partition(":")
    if not text.startswith(PREFIX) or not name:
        raise SpecError(f"an import is written import:package.module:name, got '{text}'")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"'{text}' cannot be imported ({error}); correct it, or install its package") from error
    return found
