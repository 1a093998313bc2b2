"""A search that goes on from an earlier one: what is taken over, and whom the informed adversary looks at."""

import dataclasses
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_search import MODEL, SMALL, dataset, names, search

from gradveil.engine import normalized
from gradveil.errors import SpecError
from gradveil.models import build, checkpoints
from gradveil.policies import ScoredPolicy, SearchRecord, SearchSettings, build_hybrid, ranked, read
from gradveil.policies._continuing import filled_in, next_to_inform, take_over
from gradveil.policies._proposals import given_policies, random_policies
from gradveil.policies.result import FILE, write
from gradveil.policies.search import summarized
from gradveil.transforms import NO_POLICY

AWARE = dataclasses.replace(SMALL, adversary="aware")
THRESHOLD = -100.0
INFORMED: dict[str, Any] = {"adversary": "aware", "threshold": THRESHOLD, "top": 1, "policies": 9, "batch": 3}
QUICK: dict[str, Any] = {"length": 2, "images": 2}


@cache
def plain() -> SearchRecord:
    return search(threshold=THRESHOLD)


@cache
def quick() -> SearchRecord:
    return marked(search(threshold=THRESHOLD, policies=8, **QUICK))


@cache
def continued() -> SearchRecord:
    return search(earlier=quick(), **INFORMED, **QUICK)


def marked(record: SearchRecord) -> SearchRecord:
    """Change every score so that it shows where it comes from."""
    scored = [dataclasses.replace(entry, accuracy_error=-i) for i, entry in enumerate(record.scored)]
    return dataclasses.replace(record, scored=scored)


def taken(scored: list[ScoredPolicy], settings: SearchSettings) -> list[ScoredPolicy]:
    """Take over entries of a search with the same spec."""
    spec = {"dataset": "d", "model": "m", "precision": "p", "training": {}, "search": dataclasses.asdict(settings)}
    earlier = SearchRecord(spec=spec, status="done", threshold=0.0, scored=scored)
    return take_over(dataclasses.replace(earlier, scored=[]), earlier, settings).scored


def test_scores_only_what_the_earlier_search_did_not() -> None:
    earlier = marked(plain())
    record = search(threshold=THRESHOLD, policies=20, include=("3-1-7",), top=6, earlier=earlier)
    assert set(names(record)) == set(names(search(threshold=THRESHOLD, policies=20, include=("3-1-7",))))
    assert len(record.scored) == len(set(names(record))) == 22
    assert record.scored[:13] == earlier.scored
    assert all((entry.accuracy_error or 0) >= 0 and entry.privacy is not None for entry in record.scored[13:])
    assert (record.taken_over, len(record.best)) == (13, 6)
    assert (plain().taken_over, plain().status, record.status) == (0, "done", "done")


def test_scores_nothing_where_all_is_there_and_still_chooses_anew() -> None:
    record = search(threshold=-1e9, top=2, policies=3, earlier=plain())
    assert record.scored == plain().scored
    assert set(record.seconds) == {"networks", "preparation"}
    assert record.best == ranked(plain().scored, threshold=-1e9)[:2]
    assert record.hybrid


def test_the_best_are_those_of_a_search_that_looks_at_all_of_them() -> None:
    whole, record = search(**{**INFORMED, **QUICK, "batch": 20}), continued()
    assert [entry.policy for entry in record.best] == [entry.policy for entry in whole.best]
    assert record.hybrid == whole.hybrid
    assert set(names(record)) == set(names(whole))
    all_of_them = {entry.policy: entry for entry in whole.scored}
    seen = [entry for entry in record.scored if entry.aware is not None]
    assert 2 < len(seen) <= len(record.scored)  # what is left out, the next test shows
    assert [(entry.accuracy_error or 0) <= 0 for entry in record.scored] == [True] * 9 + [False]
    for entry in seen:
        for name in ("privacy", "aware", "aware_error", "undone", "margin"):
            assert getattr(entry, name) == pytest.approx(getattr(all_of_them[entry.policy], name), abs=1e-5), name


def invented(seed: int, settings: SearchSettings, count: int) -> list[ScoredPolicy]:
    """Make up policies; scores have two digits, so that many are equal."""
    numbers = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))
    return [
        ScoredPolicy(policy=str(policy), accuracy=-100 * a, privacy=round(0.4 * p, 2), aware=round(0.4 * s, 2))
        for policy, (a, p, s) in zip(random_policies(settings, count), numbers.tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_leaving_out_what_cannot_win_never_changes_the_best_or_the_hybrid(seed: int) -> None:
    settings = dataclasses.replace(AWARE, top=1 + seed % 4, batch=1 + seed % 3)
    truth = invented(seed, settings, 60)
    if seed % 2:
        truth.append(ScoredPolicy(policy=str(NO_POLICY), accuracy=0, privacy=0.3, aware=0.3))
    scored = [dataclasses.replace(entry, aware=None) for entry in truth]
    while stack := next_to_inform(scored, settings):
        assert len(stack) <= settings.batch
        found = {entry.policy for entry in stack}
        scored = filled_in(scored, [entry for entry in truth if entry.policy in found])
    best, true = (ranked(some, threshold=SMALL.kept_from) for some in (scored, truth))
    assert best[: settings.top] == true[: settings.top]
    assert build_hybrid([e.policy for e in best]) == build_hybrid([e.policy for e in true])
    assert len(best) < len(true)
    last = max(entry.privacy or 0 for entry in best if entry.policy != str(NO_POLICY))
    left = [entry for entry in scored if entry.aware is None and entry.accuracy >= SMALL.kept_from]
    assert all((entry.privacy or 0) >= last for entry in left)


def test_the_informed_adversary_looks_first_at_what_the_others_are_compared_with() -> None:
    settings = dataclasses.replace(AWARE, include=("3-1-7",), singles=True, batch=50)
    entries = [ScoredPolicy(policy="9-9", accuracy=0, privacy=0.01)]
    entries += [ScoredPolicy(policy=name, accuracy=-90, privacy=0.9) for name in (str(NO_POLICY), "3-1-7", "5")]
    entries += [ScoredPolicy(policy="6", accuracy=0, privacy=0.9)]
    entries += [ScoredPolicy(policy="7-7", accuracy=-90, privacy=0.01)]
    first = next_to_inform(entries, settings)
    assert [entry.policy for entry in first] == [str(NO_POLICY), "3-1-7", "6"]
    entries = filled_in(entries, [dataclasses.replace(entry, aware=0.5) for entry in first])
    second = next_to_inform(entries, settings)
    assert [entry.policy for entry in second] == ["9-9"]
    assert not next_to_inform(filled_in(entries, [dataclasses.replace(second[0], aware=0.2)]), settings)
    assert not next_to_inform(entries, SMALL)


def test_killed_while_filling_in_it_goes_on_without_looking_twice(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(record: SearchRecord) -> None:
        if sum(entry.aware is not None for entry in record.scored) > 1:
            raise StopError

    with pytest.raises(StopError):
        search(folder=tmp_path, watch=stop, earlier=quick(), **INFORMED, **QUICK)
    unfinished = read(tmp_path)
    assert (unfinished.status, unfinished.taken_over, len(unfinished.scored)) == ("running", 9, 9)
    known = {entry.policy for entry in unfinished.scored if entry.aware is not None}
    changed = [dataclasses.replace(e, margin=99.0) if e.policy in known else e for e in unfinished.scored]
    write(dataclasses.replace(unfinished, scored=changed), tmp_path)
    resumed = search(folder=tmp_path, earlier=plain(), **INFORMED, **QUICK)
    assert resumed.scored == [
        dataclasses.replace(entry, margin=99.0) if entry.policy in known else entry for entry in continued().scored
    ]
    assert resumed.taken_over == 9
    assert search(folder=tmp_path, **INFORMED, **QUICK) == resumed == read(tmp_path)


def test_refuses_scores_that_mean_something_else() -> None:
    spec = json.loads(json.dumps(plain().spec))
    other = {"variant": "paper", "crop_and_flip": False}
    numbers = ("images", "rounds", "round_size", "intervals", "length", "seed")
    changed = {name: {**spec, "search": {**spec["search"], name: other.get(name, 9)}} for name in (*other, *numbers)}
    changed |= {name: {**spec, name: "other"} for name in ("dataset", "model", "precision", "training")}
    for name, there in changed.items():
        earlier = dataclasses.replace(plain(), spec=there)
        with pytest.raises(SpecError, match=f"but it has {name} .* where this one has .*; repeat"):
            search(earlier=earlier)
    with pytest.raises(SpecError, match="seed 0 where this one has 3"):
        search(seed=3, earlier=plain())


def stopped(folder: Path) -> SearchRecord:
    class StopError(Exception):
        pass

    def stop(_: SearchRecord) -> None:
        raise StopError

    with pytest.raises(StopError):
        search(folder=folder, watch=stop)
    return read(folder)


def test_refuses_to_go_on_with_another_network(tmp_path: Path) -> None:
    begun = stopped(tmp_path)
    assert search(policies=1, earlier=begun).scored_with == begun.scored_with == plain().scored_with
    (file,) = (tmp_path / "models").glob("semi-trained-*.safetensors")
    model = build(MODEL, input_shape=dataset().input_shape, num_classes=3, seed=5)
    checkpoints.save(normalized(model, dataset().mean, dataset().std), file, about={"accuracy": "0.5"})
    for go_on in (partial(search, folder=tmp_path), partial(search, earlier=plain(), networks=tmp_path / "models")):
        with pytest.raises(SpecError, match="of another semi-trained network or other images; name the folder"):
            go_on()


def test_refuses_to_go_on_with_other_images() -> None:
    other = dataclasses.replace(dataset(), test=dataset().test.select(torch.arange(39, -1, -1)))
    with pytest.raises(SpecError, match="other images"):
        search(earlier=plain(), data=other)


def test_a_record_that_does_not_say_what_scored_it_is_known_by_no_policy() -> None:
    silent = dataclasses.replace(plain(), scored_with="")
    assert search(policies=1, earlier=silent).scored_with == plain().scored_with
    moved = [dataclasses.replace(entry, privacy=(entry.privacy or 0) + 0.002) for entry in silent.scored]
    with pytest.raises(SpecError, match="another semi-trained network"):
        search(earlier=dataclasses.replace(silent, scored=moved))


def test_forgets_policies_that_change_the_colour_of_grey_images() -> None:
    entries = [ScoredPolicy(policy=name, accuracy=0, privacy=0.3, origin="random") for name in ("20-3", "3", "3-12-9")]
    spec = {"dataset": "d", "model": "m", "precision": "p", "training": {}, "search": dataclasses.asdict(SMALL)}
    earlier = SearchRecord(spec=spec, status="done", threshold=0.0, scored=entries)
    begun = dataclasses.replace(earlier, scored=[])
    assert [entry.policy for entry in take_over(begun, earlier, SMALL, channels=1).scored] == ["3"]
    assert len(take_over(begun, earlier, SMALL).scored) == 3


def test_settings_that_only_choose_may_differ() -> None:
    fields = {
        "policies": 3, "top": 1, "method": "evolution", "threshold": 0.0, "extensions": 1, "skip_rejected": True,
        "adversary": "aware", "include": ("3",), "singles": True, "batch": 2, "population": 2, "first_look": 2,
    }  # fmt: skip
    settings = dataclasses.replace(SMALL, **fields)  # type: ignore[arg-type]
    spec = {**plain().spec, "search": json.loads(json.dumps(dataclasses.asdict(settings)))}
    begun = SearchRecord(spec=spec, status="running", threshold=0.0, scored=[])
    assert take_over(begun, plain(), settings).taken_over == 13


def test_an_origin_is_that_of_this_search() -> None:
    drawn = [str(policy) for policy in random_policies(SMALL, 12, exclude=given_policies(SMALL))]
    settings = dataclasses.replace(SMALL, include=(drawn[0],))
    entries = [
        ScoredPolicy(policy=drawn[0], accuracy=0, privacy=0.1, origin="random"),
        ScoredPolicy(policy=drawn[1], accuracy=0, privacy=0.1, origin="given"),
        ScoredPolicy(policy=drawn[2], accuracy=0, privacy=0.1, origin="evolved"),
        ScoredPolicy(policy="1-1-1", accuracy=0, privacy=0.1, origin="given"),
        ScoredPolicy(policy="2-2-2", accuracy=0, privacy=0.1, origin="evolved"),
    ]
    assert [entry.origin for entry in taken(entries, settings)] == ["given", "random", "random", "given", "evolved"]


def test_a_policy_given_before_and_drawn_now_counts_in_the_budget() -> None:
    drawn = names(plain())[4]
    given = search(threshold=THRESHOLD, include=(drawn,))
    back = search(threshold=THRESHOLD, earlier=given)
    assert {entry.policy: entry.origin for entry in plain().scored}.items() <= {
        entry.policy: entry.origin for entry in back.scored
    }.items()
    assert search(threshold=THRESHOLD, include=(drawn,), earlier=plain()).passed == given.passed


def test_scores_anew_what_was_dropped_or_left_out_and_is_wanted_now() -> None:
    rejected = ScoredPolicy(policy="3", accuracy=-90)
    dropped = ScoredPolicy(policy="9", accuracy=0, privacy=0.3, dropped=True)
    assert taken([rejected, dropped], SMALL) == []
    skips = dataclasses.replace(SMALL, skip_rejected=True)
    assert taken([rejected, dropped], skips) == [rejected]
    assert taken([rejected], dataclasses.replace(skips, threshold=-95.0)) == []
    assert taken([rejected], dataclasses.replace(skips, include=("3",))) == []
    sparse = search(threshold=-60.0, skip_rejected=True)
    assert any(entry.privacy is None for entry in sparse.scored)
    full = search(threshold=THRESHOLD, earlier=sparse)
    assert 0 < full.taken_over < 13
    assert {entry.policy: entry.privacy for entry in full.scored} == pytest.approx(
        {entry.policy: entry.privacy for entry in plain().scored}, abs=1e-6
    )


def test_a_plain_search_forgets_the_informed_adversary() -> None:
    seen = ScoredPolicy(policy="3", accuracy=0, privacy=0.3, aware=0.6, aware_error=0.1, undone=0.5, margin=1.0)
    assert taken([seen], AWARE) == [seen]
    assert taken([seen], SMALL) == [ScoredPolicy(policy="3", accuracy=0, privacy=0.3)]


def test_what_is_only_a_lower_bound_does_not_rank_beside_what_is_known() -> None:
    unknown = ScoredPolicy(policy="3", accuracy=0, privacy=0.1)
    known = ScoredPolicy(policy="5", accuracy=0, privacy=0.2, aware=0.6)
    record = SearchRecord(spec={}, status="running", threshold=-1, scored=[unknown, known])
    shown = summarized(record, top=3)
    assert (shown.best, shown.hybrid) == ([known], "5")
    assert ranked([unknown], threshold=-1) == [unknown]


def test_evolution_goes_on_from_random_policies() -> None:
    record = search(method="evolution", policies=16, threshold=THRESHOLD, earlier=marked(plain()))
    assert [entry.origin for entry in record.scored[13:]] == ["evolved"] * 4
    assert len(set(names(record))) == 17


def test_records_without_a_count_of_what_was_taken_over_are_read(tmp_path: Path) -> None:
    content = dataclasses.asdict(plain())
    del content["taken_over"]
    (tmp_path / FILE).write_text(json.dumps(content))
    assert read(tmp_path) == plain()
