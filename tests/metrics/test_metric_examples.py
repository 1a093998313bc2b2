"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import gradveil.metrics

MODULES = [module.name for module in pkgutil.iter_modules(gradveil.metrics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"gradveil.metrics.{name}")).failed == 0
