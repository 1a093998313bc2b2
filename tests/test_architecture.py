"""Who may import whom, how large things may be, and where randomness may come from: read off the source."""

import ast
import statistics
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gradveil
from gradveil.attacks import attacks
from gradveil.defenses import defenses
from gradveil.registry import Registry

ROOT = Path(gradveil.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in FILES}

BASE = {"types", "errors", "streams"}
METHODS = {*BASE, "registry", "engine", "transforms"}
MAY_IMPORT = {
    "types": {"errors"},
    "errors": set(),
    "streams": {"types", "errors"},
    "registry": {"errors"},
    "engine": BASE,
    "transforms": BASE,
    "attacks": METHODS,
    "defenses": METHODS,
    "metrics": METHODS,
}
MUST_NOT_IMPORT = {
    "report": {"engine", "attacks", "defenses", "client", "data", "models", "auditing"},
    "record": {"engine", "attacks", "defenses", "client", "data", "models", "auditing"},
    "data": {"engine", "attacks", "defenses", "client", "auditing", "metrics"},
    "client": {"attacks", "metrics", "data", "models", "auditing", "record"},
}


def part(path: Path) -> str:
    """Name the file or folder right below the package that a file belongs to."""
    return path.parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Name the parts that a file imports, also inside functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            package, *rest = (node.module or "").split(".")
            if package == "gradveil":
                yield from rest[:1] or [name.name for name in node.names]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("gradveil."))


def functions() -> Iterator[tuple[str, int]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", (node.end_lineno or 0) - node.lineno + 1


def dotted(node: ast.AST) -> str:
    """Write `torch.nn.init.normal_` as it stands in the source; empty where it is something else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", TREES, ids=str)
def test_code_flows_in_one_direction(path: Path) -> None:
    found = set(imported(TREES[path])) - {part(path)}
    allowed = MAY_IMPORT.get(part(path))
    assert allowed is None or found <= allowed, f"{path} must not import {', '.join(sorted(found - allowed))}"
    forbidden = found & MUST_NOT_IMPORT.get(part(path), set())
    assert not forbidden, f"{path} must not import {', '.join(sorted(forbidden))}"


def test_parts_do_not_need_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        assert isinstance(tree, ast.Module)
        loaded = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        if path.name != "__init__.py" or len(path.parts) > 1:
            graph.setdefault(part(path), set()).update(set(imported(loaded)) - {part(path)})
    assert set(TopologicalSorter(graph).static_order()) >= {"types", "engine", "attacks", "client"}


def test_only_the_client_and_the_recorder_make_observations_and_evidence() -> None:
    makers = {
        part(path)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in {"Observation", "Evidence"}
    }
    assert makers <= {"client", "federated"}


def test_no_attack_knows_the_words_for_what_is_private() -> None:
    for path, tree in TREES.items():
        if part(path) in {"attacks", "engine", "transforms"}:
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert not names & {"Batch", "Evidence", "Protected", "Step"}, path


def test_files_stay_small() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in TREES}
    assert [f"{path} has {length}" for path, length in lengths.items() if length > 400] == []
    assert statistics.median(length for length in lengths.values() if length > 5) <= 130


def test_functions_stay_small() -> None:
    lengths = dict(functions())
    assert [f"{name} has {length}" for name, length in lengths.items() if length > 60] == []
    assert statistics.median(lengths.values()) <= 10


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "misc", "common"}
    assert [path for path in TREES if path.stem.strip("_") in drawers or drawers & set(path.parts)] == []


@pytest.mark.parametrize("registry", [attacks, defenses], ids=lambda registry: registry.kind)
def test_every_method_is_one_final_frozen_dataclass(registry: Registry[object]) -> None:
    for name in registry.names():
        leaf = registry.get(name)
        assert getattr(leaf, "__final__", False), f"{name} is not final"
        assert leaf.__dataclass_params__.frozen, f"{name} is not frozen"  # type: ignore[attr-defined]
        assert leaf.__doc__, f"{name} says nothing about itself"
        file = ROOT / registry.kind.replace("attack", "attacks").replace("defense", "defenses")
        assert 45 <= len((file / f"{name.replace('-', '_')}.py").read_text().splitlines()) <= 150, name


GENERATORS = {"Generator", "Philox", "PCG64", "SeedSequence", "BitGenerator", "default_rng"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
DRAWS_LIKE = {"rand_like", "randn_like", "randint_like"}
SEEDED = {Path("models/_base.py"), Path("models/training.py")}
"""Random layers of torch take no generator: these files lend them a seeded state and put the old one back."""
IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}


def uses_global_randomness(node: ast.AST) -> bool:
    """Tell whether a call or import draws from, or seeds, a random state that everybody shares."""
    if isinstance(node, ast.Import):
        return any(name.name == "random" for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in {"random", "numpy.random"}
    if not isinstance(node, ast.Call):
        return False
    owner, _, name = dotted(node.func).rpartition(".")
    seeded = any(keyword.arg == "generator" for keyword in node.keywords)
    return (
        (owner in {"torch", "torch.random", "torch.cuda"} and (name in {"seed", *DRAWS_LIKE} or "manual_seed" in name))
        or (owner in {"np.random", "numpy.random"} and name not in GENERATORS)
        or (owner == "torch" and name in DRAWS and not seeded)
        or (name in IN_PLACE and not seeded)
    )


def test_the_rule_about_randomness_can_fail() -> None:
    for text in ("torch.manual_seed(0)", "np.random.seed(0)", "torch.rand(3)", "x.normal_()", "import random"):
        assert any(uses_global_randomness(node) for node in ast.walk(ast.parse(text))), text
    for text in ("torch.rand(3, generator=g)", "np.random.default_rng(0)", "torch.Generator().manual_seed(0)"):
        assert not any(uses_global_randomness(node) for node in ast.walk(ast.parse(text))), text


def test_nothing_uses_a_random_state_that_everybody_shares() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if path not in SEEDED and uses_global_randomness(node)
    ]
    assert found == []
