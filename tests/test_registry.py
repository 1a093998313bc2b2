from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradveil.attacks import DLG, InvertingGradients, attacks
from gradveil.defenses import GaussianNoise, Pruning, defenses
from gradveil.errors import SpecError, UnknownNameError
from gradveil.models import architectures
from gradveil.models.zoo import MLP
from gradveil.registry import Registry, convert, parse_settings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field of every kind that a method may have."""

    rate: float = 0.1
    steps: int = 3
    on: bool = False
    word: str = "plain"
    kind: Literal["first", "second"] = "first"
    limit: int | None = None
    two_words: int = 0
    sizes: tuple[int, ...] = (1, 2)
    scales: tuple[float, ...] = (0.5,)
    hidden: int = field(default=0, init=False)


toys: Registry[Settings] = Registry("toy", "nowhere", Settings)


def rebuild(settings: Settings) -> Settings:
    _, _, text = toys.describe(settings).partition(":")
    return Settings(**parse_settings(Settings, text, "toy"))


words = st.text("abcdefghij-_/.0123456789", min_size=1).filter(lambda word: word.lower() != "none")
settings = st.builds(
    Settings,
    rate=st.floats(allow_nan=False),
    steps=st.integers(-(2**53), 2**53),
    on=st.booleans(),
    word=words,
    kind=st.sampled_from(["first", "second"]),
    limit=st.none() | st.integers(-1000, 1000),
    sizes=st.lists(st.integers(-100, 100), max_size=4).map(tuple),
    scales=st.lists(st.floats(1e-5, 1e15), max_size=4).map(tuple),
)


@given(settings)
def test_what_is_described_can_be_built_again(given_settings: Settings) -> None:
    assert rebuild(given_settings) == given_settings


def test_a_large_whole_number_keeps_its_digits() -> None:
    assert rebuild(Settings(steps=2**53 + 1)).steps == 2**53 + 1


def test_a_tuple_of_large_numbers_can_be_built_again() -> None:
    assert rebuild(Settings(scales=(1e20,))).scales == (1e20,)


@given(
    st.builds(
        InvertingGradients,
        steps=st.integers(1, 10**6),
        lr=st.floats(1e-9, 1e9),
        tv=st.floats(0, 1e3),
        signed=st.booleans(),
        boxed=st.booleans(),
        start=st.sampled_from(["normal", "uniform", "zeros", "pattern"]),
        restarts=st.integers(1, 50),
    )
)
def test_an_attack_rebuilds_from_its_description(attack: InvertingGradients) -> None:
    assert attacks.build(attacks.describe(attack)) == attack


@given(st.floats(0, 1e6), st.floats(0, 0.999))
def test_a_defense_rebuilds_from_its_description(std: float, fraction: float) -> None:
    for defense in (GaussianNoise(std=std), Pruning(fraction=fraction)):
        assert defenses.build(defenses.describe(defense)) == defense


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4).map(tuple))
def test_an_architecture_rebuilds_from_its_description(hidden: tuple[int, ...]) -> None:
    model = MLP(hidden=hidden)
    assert architectures.build(architectures.describe(model)) == model


@pytest.mark.parametrize("registry", [attacks, defenses, architectures])
def test_every_name_builds_a_leaf_that_bears_it(registry: Registry[object]) -> None:
    assert registry.names() == tuple(sorted(registry.names()))
    for name in registry.names():
        method = registry.build(name)
        assert isinstance(method, registry.base)
        assert registry.name_of(method) == registry.name_of(type(method)) == name
        assert registry.describe(method) == name


def test_names_are_those_of_the_files() -> None:
    assert {"dlg", "inverting-gradients"} <= set(attacks.names())
    assert {"gaussian-noise", "laplacian-noise", "pruning"} <= set(defenses.names())
    assert attacks.get("dlg") is DLG


def test_settings_may_be_spaced_and_dashed_and_the_first_needs_no_name() -> None:
    assert defenses.build("gaussian-noise:0.01") == GaussianNoise(std=0.01)
    assert defenses.build(" gaussian-noise : std = 1e-2 ") == GaussianNoise(std=0.01)
    assert attacks.build("inverting-gradients:100,lr=1,signed=no") == InvertingGradients(
        steps=100, lr=1.0, signed=False
    )
    assert architectures.build("mlp:hidden=16+8") == MLP(hidden=(16, 8))
    found = parse_settings(Settings, "limit=none,sizes=,two-words=4", "toy")
    assert found == {"limit": None, "sizes": (), "two_words": 4}


def test_describes_what_differs_from_the_defaults_alone() -> None:
    assert attacks.describe(InvertingGradients()) == "inverting-gradients"
    assert attacks.describe(InvertingGradients(steps=10, boxed=False)) == "inverting-gradients:steps=10,boxed=False"


@pytest.mark.parametrize(
    ("name", "near"),
    [("invertinggradients", "inverting-gradients"), ("inverting_gradients", "inverting-gradients"), ("dgl", "dlg")],
)
def test_an_unknown_name_brings_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"there is no attack called '{name}'; did you mean .*{near}"):
        attacks.build(name)


def test_a_name_like_no_other_brings_all_of_them() -> None:
    with pytest.raises(UnknownNameError, match=r"known are .*gaussian-noise, .*laplacian-noise, .*pruning"):
        defenses.build("zzzzzz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian-noise:sdt=1", "no setting of defense gaussian-noise called 'sdt'; did you mean std"),
        ("gaussian-noise:std=much", "defense gaussian-noise: std must be of type float, got 'much'"),
        ("gaussian-noise:std=1,2", "'2' in defense gaussian-noise needs a field name"),
        ("gaussian-noise:std", "defense gaussian-noise: std must be of type float, got 'std'"),
    ],
)
def test_a_wrong_setting_is_named(text: str, message: str) -> None:
    with pytest.raises((SpecError, UnknownNameError), match=message):
        defenses.build(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps=1.5", "steps must be of type int, got '1.5'"),
        ("steps=nan", "steps must be of type int, got 'nan'"),
        ("steps=inf", "steps must be of type int, got 'inf'"),
        ("rate=nan", "rate must be a number, got 'nan'"),
        ("scales=1+NaN", "scales must be a number, got 'NaN'"),
        ("on=maybe", "on must be true or false, got 'maybe'"),
        ("kind=third", "kind must be one of first, second, got 'third'"),
        ("limit=few", "limit must be of type int, got 'few'"),
        ("sizes=1+a", "sizes must be of type int, got 'a'"),
        ("hidden=1", "no setting of toy called 'hidden'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(text: str, message: str) -> None:
    with pytest.raises((SpecError, UnknownNameError), match=message):
        parse_settings(Settings, text, "toy")


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000), ("-7", -7), ("2.0", 2)])
def test_whole_numbers_may_be_written_with_an_exponent(text: str, value: int) -> None:
    found = convert(text, int, "here")
    assert found == value
    assert isinstance(found, int)


def test_checks_of_the_constructor_come_through() -> None:
    with pytest.raises(ValueError, match="std must be at least 0, got -1"):
        defenses.build("gaussian-noise:-1")
