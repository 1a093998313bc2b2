"""Searches that were run elsewhere and say all that an experiment wants to know."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradveil.grid import Settings
from gradveil.policies import result
from gradveil.reproducing import Means, _searches
from gradveil.reproducing._wanted_searches import says_all, wanted_search
from gradveil.reproducing.plans import Part

MEANS = Means(settings=Settings(device=torch.device("cpu"), chunk=64, redact=True))
SEARCH = {
    "policies": 3,
    "singles": True,
    "include": ["3-1-7"],
    "images": 2,
    "rounds": 1,
    "round_size": 12,
    "intervals": 1,
}
SAYS_ALL: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"policies": 0, "include": [], "top": 3}, True),
    ({"policies": 2}, False),
    ({"policies": 4}, False),
    ({"include": ["3-1"]}, False),
    ({"images": 3}, False),
    ({"seed": 1}, False),
    ({"adversary": "aware"}, False),
]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches") / "plain"
    part = Part(name="a", kind="search", tables={"search": SEARCH, "training": {"epochs": 1}})
    _searches.run(part, folder, MEANS)
    return folder


@pytest.mark.parametrize(("changes", "all_said"), SAYS_ALL)
def test_a_search_run_elsewhere_is_taken_over_if_it_scored_all_that_is_wanted(
    changes: dict[str, Any], all_said: bool, searched: Path, tmp_path: Path
) -> None:
    part = Part(name="a", kind="search", tables={"search": {**SEARCH, **changes}, "training": {"epochs": 1}})
    assert says_all(result.read(searched), wanted_search(part)) == all_said
    if all_said:
        for _ in range(2):
            _searches.run(part, tmp_path / "here", replace(MEANS, adopted=(searched.parent,)))
        assert (tmp_path / "here" / "search.json").read_bytes() == (searched / "search.json").read_bytes()


def test_a_search_on_another_network_or_one_under_way_is_not_taken_over(searched: Path) -> None:
    made = result.read(searched)
    longer = Part(name="a", kind="search", tables={"search": SEARCH, "training": {"epochs": 2}})
    same = replace(longer, tables={"search": SEARCH, "training": {"epochs": 1}})
    assert not says_all(made, wanted_search(longer))
    assert says_all(made, wanted_search(same))
    assert not says_all(replace(made, status="running"), wanted_search(same))
