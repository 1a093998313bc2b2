import doctest
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradveil

MODULES = sorted(path.stem for path in Path(gradveil.__file__).parent.glob("*.py") if path.stem != "__main__")
HEAVY = ("torchvision", "flwr", "matplotlib", "typer", "rich", "sklearn", "jinja2", "breaching")


@pytest.mark.parametrize("name", gradveil.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(gradveil, name)
    assert value is not None
    assert value.__doc__


def test_the_list_of_public_names_is_sorted_and_free_of_private_ones() -> None:
    assert len(set(gradveil.__all__)) == len(gradveil.__all__)
    assert not any(name.startswith("_") for name in gradveil.__all__)


@pytest.mark.parametrize("stem", MODULES)
def test_the_examples_of_a_module_run(stem: str) -> None:
    module: ModuleType = gradveil if stem == "__init__" else importlib.import_module(f"gradveil.{stem}")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_some_examples_were_found() -> None:
    finder = doctest.DocTestFinder()
    names = ("auditing", "client", "spec", "streams")
    examples = [t for name in names for t in finder.find(importlib.import_module(f"gradveil.{name}")) if t.examples]
    assert len(examples) >= len(names)


IMPORTING = f"""
import sys, torch
state = torch.get_rng_state()
import gradveil
assert torch.equal(state, torch.get_rng_state())
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_importing_the_package_is_light_silent_and_leaves_the_random_state_alone() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], check=True, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")
