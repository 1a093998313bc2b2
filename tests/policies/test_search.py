"""The search: budget, distinct policies, ranking, hybrids, checkpoints and networks."""

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from gradveil.data import Dataset, Split
from gradveil.engine import Runtime
from gradveil.errors import DataError, RecordError, SpecError
from gradveil.models import checkpoints
from gradveil.models.training import Training, TrainingError
from gradveil.policies import (
    ScoredPolicy,
    SearchRecord,
    SearchSettings,
    accuracy_score,
    build_hybrid,
    privacy_score,
    ranked,
    read,
    search_policies,
)
from gradveil.policies._networks import make_networks, tenth
from gradveil.policies._proposals import evolved_policies, given_policies, random_policies
from gradveil.policies._scorers import Scorers, accuracy_rows, privacy_rows
from gradveil.policies.search import Watch
from gradveil.streams import Streams
from gradveil.transforms import NO_POLICY, Hybrid, Policy, parse_policy

MODEL = "mlp:hidden=12,activation=tanh"
TRAINING = Training(epochs=2, batch_size=8)
SMALL = SearchSettings(
    policies=12, images=4, rounds=2, round_size=6, intervals=2, batch=5, population=6, threshold=-50.0, top=4
)


@cache
def dataset(classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(256, (count, 1, 8, 8), generator=generator).to(torch.uint8)
        return Split(images, torch.arange(count) % classes)

    names = tuple(map(str, range(classes)))
    return Dataset(name="noise", train=split(80), test=split(40), classes=names, mean=(0.5,), std=(0.3,))


def search(
    folder: Path | None = None,
    watch: Watch | None = None,
    earlier: SearchRecord | None = None,
    networks: Path | None = None,
    data: Dataset | None = None,
    **changes: object,
) -> SearchRecord:
    return search_policies(
        data or dataset(),
        MODEL,
        settings=dataclasses.replace(SMALL, **changes),  # type: ignore[arg-type]
        folder=folder,
        networks=networks,
        training=TRAINING,
        runtime=Runtime(precision="float32", chunk=64),
        watch=watch,
        earlier=earlier,
    )


def names(record: SearchRecord) -> list[str]:
    return [entry.policy for entry in record.scored]


@pytest.mark.parametrize("method", ["random", "evolution"])
def test_spends_the_budget_on_distinct_policies_in_canonical_form(method: str) -> None:
    record = search(method=method, include=("3-1-7", "48-28"))
    assert record.status == "done"
    assert names(record)[:3] == [str(NO_POLICY), "3-1-7", "24"]
    assert len(record.scored) == len(set(names(record))) == 3 + 12
    assert all(str(parse_policy(name).policies[0].canonical()) == name for name in names(record))
    origins = {entry.origin for entry in record.scored}
    assert origins == {"given", "random"} | ({"evolved"} if method == "evolution" else set())


def test_a_policy_of_a_search_scores_as_it_does_alone() -> None:
    record = search()
    entry = record.scored[3]
    networks = make_networks(dataset(), MODEL, seed=0, folder=None, device=torch.device("cpu"), training=TRAINING)
    rows, more = privacy_rows(40, 4), accuracy_rows(40, 2, 6)
    split = dataset().test
    private = privacy_score(
        entry.policy, networks.semi_trained, split.inputs(rows), split.labels[rows],
        intervals=2, streams=Streams(purpose="search/privacy"),
    )  # fmt: skip
    accurate = accuracy_score(
        entry.policy, networks.untrained, split.inputs(more), split.labels[more],
        rounds=2, streams=Streams(purpose="search/accuracy"),
    )  # fmt: skip
    assert entry.privacy == pytest.approx(private.mean, abs=1e-6)
    assert entry.privacy_error == pytest.approx(private.standard_error, abs=1e-6)
    assert entry.accuracy == pytest.approx(accurate.mean, rel=1e-4)


@pytest.mark.parametrize("method", ["random", "evolution"])
def test_an_interrupted_search_goes_on_to_the_same_result(method: str, tmp_path: Path) -> None:
    whole = search(method=method)

    class StopError(Exception):
        pass

    def stop(record: SearchRecord) -> None:
        if len(record.scored) > 8:
            raise StopError

    with pytest.raises(StopError):
        search(folder=tmp_path, watch=stop, method=method)
    unfinished = read(tmp_path)
    assert unfinished.status == "running"
    assert 8 < len(unfinished.scored) < len(whole.scored)
    resumed = search(folder=tmp_path, method=method)
    assert [dataclasses.astuple(entry) for entry in resumed.scored] == [
        dataclasses.astuple(entry) for entry in whole.scored
    ]
    assert search(folder=tmp_path, method=method) == resumed == read(tmp_path)


def test_refuses_the_folder_of_another_search_and_a_damaged_one(tmp_path: Path) -> None:
    search(folder=tmp_path)
    with pytest.raises(
        SpecError, match="another spec: policies 12 where this one has 9; seed 0 where this one has 1; name"
    ):
        search(folder=tmp_path, seed=1, policies=9)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(RecordError, match="not a search"):
        read(tmp_path)
    with pytest.raises(RecordError, match="no search at"):
        read(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("spec", [], "spec"),
        ("spec", {"dataset": "digits"}, "spec"),
        ("threshold", None, "threshold"),
        ("scored", [{"policy": "50", "accuracy": -1.0}], "'50' at position 1"),
        ("best", [{"policy": 3, "accuracy": -1.0}], "policy"),
        ("scored", [{"policy": "3", "accuracy": "high"}], "accuracy of 3"),
        ("scored", [{"policy": "3", "accuracy": -1.0, "aware": [0.1]}], "aware of 3"),
        ("hybrid", "3+77", "'77' at position 3"),
    ],
)
def test_refuses_a_record_whose_parts_are_not_what_they_are_called(
    name: str, value: object, complaint: str, tmp_path: Path
) -> None:
    search(folder=tmp_path, policies=1)
    file = tmp_path / "search.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(RecordError, match=rf"is not a search of GradVeil \(.*{complaint}.*\); search again"):
        read(tmp_path)


def test_keeps_what_passes_the_threshold_most_private_first() -> None:
    record = search()
    passing = [entry for entry in record.scored if entry.accuracy >= -50]
    areas = sorted((entry.privacy or 0.0, entry.policy) for entry in passing if entry.policy != str(NO_POLICY))
    assert [(entry.privacy, entry.policy) for entry in record.best] == areas[:4]
    drawn = [entry for entry in record.scored if entry.origin == "random"]
    assert record.passed == sum(entry.accuracy >= -50 for entry in drawn) / len(drawn)
    assert record.passed > 0


def test_no_policy_takes_no_place_among_the_best() -> None:
    record = search(threshold=-1e9, top=13)
    assert str(NO_POLICY) in names(record)
    assert sorted(entry.policy for entry in record.best) == sorted(set(names(record)) - {str(NO_POLICY)})


def test_leaves_out_the_privacy_score_of_rejected_policies_if_told_to() -> None:
    threshold = sorted(entry.accuracy for entry in search().scored)[8]
    record = search(skip_rejected=True, threshold=threshold)
    rejected = [entry for entry in record.scored if entry.accuracy < threshold and entry.origin != "given"]
    assert rejected
    assert all(entry.privacy is None for entry in rejected)
    assert record.best == search(threshold=threshold).best


def test_a_first_look_drops_what_misses_the_best_by_far_and_nothing_else() -> None:
    scorers = Scorers.of(
        make_networks(dataset(), MODEL, seed=0, folder=None, device=torch.device("cpu"), training=TRAINING),
        dataset().test,
        dataclasses.replace(SMALL, images=20, first_look=8, top=1),
        runtime=Runtime(precision="float32", chunk=64),
    )
    plain, drawn = Policy((28,)), random_policies(SMALL, 6)
    whole = scorers.score(drawn, "random")  # nothing to beat yet
    assert not any(entry.dropped for entry in whole)
    areas = scorers.privacy([Hybrid((policy,)) for policy in (plain, *drawn)]).double()
    difference = areas[1:, :8] - areas[0, :8]
    estimate = areas[0].mean() + difference.mean(1)
    error = difference.std(1) * ((1 - 8 / 20) / 8) ** 0.5
    limit = float((estimate - 4 * error).sort().values[3]) - 1e-6
    best = ScoredPolicy(policy="3", accuracy=0.0, privacy=limit)
    looked = scorers.score(drawn, "random", [best])
    dropped = [entry.dropped for entry in looked]
    assert dropped == (estimate - 4 * error > limit).tolist()
    assert sum(dropped) == 3
    for entry, full, guess in zip(looked, whole, estimate.tolist(), strict=True):
        assert entry.privacy == pytest.approx(guess if entry.dropped else full.privacy, abs=1e-6)
    assert not ranked([entry for entry in looked if entry.dropped], threshold=-1e9)


def test_a_first_look_does_not_change_the_best() -> None:
    whole = search(images=12, top=1, policies=40, threshold=-1e9)
    looked = search(images=12, top=1, policies=40, threshold=-1e9, first_look=6)
    assert [entry.policy for entry in looked.best] == [entry.policy for entry in whole.best]
    assert any(entry.dropped for entry in looked.scored)


def test_spends_the_budget_again_while_too_few_pass() -> None:
    record = search(policies=4, extensions=2, threshold=0.0)
    assert len(record.scored) == 1 + 3 * 4
    assert (record.best, record.hybrid) == ([], "")
    assert len(search(policies=4, extensions=2, threshold=-1e9, top=2).scored) == 1 + 4


def test_scores_all_single_operations_once() -> None:
    record = search(policies=1, singles=True, images=1, intervals=1)
    given = [entry for entry in record.scored if entry.origin == "given"]
    assert len(given) == 25  # of grey images: 29 functions, of which two change nothing and three only colour
    assert len(given_policies(dataclasses.replace(SMALL, singles=True))) == 28


@pytest.mark.parametrize("method", ["random", "evolution"])
def test_scores_no_policy_of_grey_images_twice(method: str) -> None:
    record = search(method=method, include=("20-3", "3-27"), policies=40)
    assert names(record)[:2] == [str(NO_POLICY), "3"]
    used = {int(code) for name in names(record) for code in name.split("-")}
    assert not used & {12, 20, 27, 34}
    assert {12, 20, 27} & {code for policy in random_policies(SMALL, 40) for code in policy.operations}


def test_random_policies_of_a_larger_budget_begin_with_the_same_ones() -> None:
    few, many = random_policies(SMALL, 10), random_policies(SMALL, 40)
    assert many[:10] == few
    assert len(set(many)) == 40
    assert len(random_policies(dataclasses.replace(SMALL, length=1), 100)) == 28


def test_evolution_prefers_what_is_private_and_passes() -> None:
    good = [ScoredPolicy(policy=f"3-{code}", accuracy=-10, privacy=0.1) for code in (1, 2, 4, 5)]
    bad = [ScoredPolicy(policy=f"12-{code}", accuracy=-10, privacy=0.9) for code in (1, 2, 4, 5)]
    failing = [ScoredPolicy(policy=f"15-{code}", accuracy=-90, privacy=0.01) for code in (1, 2, 4, 5)]
    children = evolved_policies(SMALL, [*good, *bad, *failing], 200)
    assert len(set(children)) == len(children)
    used = [sum(code in child.operations for child in children) for code in (3, 12, 15)]
    assert used[0] > 3 * used[1]
    assert used[0] > 3 * used[2]
    assert all(len(child.operations) <= SMALL.length for child in children)


def test_hybrids_join_the_best_without_a_common_function() -> None:
    assert str(build_hybrid(["3-1-7", "3-18", "1", "43-18-18", "9"])) == "3-1-7+43-18-18"
    assert str(build_hybrid(["28", "24-1", "48-5", "9"], size=3)) == "24-1+9"
    with pytest.raises(SpecError, match="at least one policy"):
        build_hybrid([])


def test_ranking_breaks_ties_by_name() -> None:
    entries = [ScoredPolicy(policy=name, accuracy=0, privacy=0.5) for name in ("7", "3", "5")]
    assert [entry.policy for entry in ranked(entries, threshold=-1)] == ["3", "5", "7"]


def test_the_published_images_are_taken_where_there_are_enough() -> None:
    assert privacy_rows(10_000, 100) == [200 + 5 * i for i in range(100)]
    assert accuracy_rows(10_000, 10, 100) == list(range(200, 1200))
    for total in (40, 359, 700):
        for rows in (privacy_rows(total, 100), accuracy_rows(total, 10, 100)):
            assert len(rows) == len(set(rows)) > 0
            assert min(rows) >= min(100, total // 4)
            assert max(rows) < total


def test_the_semi_trained_network_learns_from_a_tenth_and_is_kept(tmp_path: Path) -> None:
    arguments = {"seed": 3, "folder": tmp_path, "device": torch.device("cpu"), "training": TRAINING}
    made = make_networks(dataset(), MODEL, **arguments)  # type: ignore[arg-type]
    again = make_networks(dataset(), MODEL, **arguments)  # type: ignore[arg-type]
    kept = {file.name.rsplit("-", 1)[0]: checkpoints.read_about(file) for file in tmp_path.glob("*.safetensors")}
    assert set(kept) == {"semi-trained", "untrained"}
    assert kept["semi-trained"]["images"] == "8"
    assert json.loads(kept["semi-trained"]["training"])["epochs"] == 2
    for first, second in zip(made.semi_trained.parameters(), again.semi_trained.parameters(), strict=True):
        assert torch.equal(first, second)
    pairs = zip(made.semi_trained.parameters(), made.untrained.parameters(), strict=True)
    assert not all(torch.equal(first, second) for first, second in pairs)
    assert len(tenth(dataset().train, seed=0)) == 8


def test_refuses_what_cannot_be_searched() -> None:
    alone = dataclasses.replace(dataset(1), classes=("only", "never"))
    with pytest.raises(DataError, match="at least two classes"):
        search_policies(alone, MODEL, settings=SMALL, training=TRAINING)
    for field, value in (
        ("policies", -1),
        ("length", 0),
        ("method", "magic"),
        ("variant", "mine"),
        ("extensions", -1),
        ("adversary", "angry"),
        ("first_look", -1),
        ("seed", -1),
        ("round_size", 1),
    ):
        with pytest.raises(SpecError, match=field):
            dataclasses.replace(SMALL, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="'50' at position 1"):
        SearchSettings(include=("50",))
    with pytest.raises(SpecError, match="include policies"):
        SearchSettings(policies=0)
    with pytest.raises(SpecError, match="hybrid"):
        SearchSettings(include=("3+4",))
    with pytest.raises(SpecError, match="at most 1"):
        SearchSettings(include=("3-4",), length=1)


def test_refuses_more_rounds_than_there_are_images() -> None:
    with pytest.raises(DataError, match="16 rounds need at least 32 images beside the first 10, got 30"):
        accuracy_rows(40, 16, 2)
    assert len(accuracy_rows(40, 15, 2)) == 30


def test_refuses_networks_that_say_nothing_of_themselves_or_diverged(tmp_path: Path) -> None:
    arguments = {"seed": 0, "folder": tmp_path, "device": torch.device("cpu"), "training": TRAINING}
    made = make_networks(dataset(), MODEL, **arguments)  # type: ignore[arg-type]
    (file,) = tmp_path.glob("semi-trained-*.safetensors")
    checkpoints.save(made.untrained, file, about={})
    with pytest.raises(RecordError, match="does not say its accuracy; remove it"):
        make_networks(dataset(), MODEL, **arguments)  # type: ignore[arg-type]
    with torch.no_grad():
        next(made.semi_trained.parameters()).fill_(torch.nan)
    scorers = Scorers.of(made, dataset().test, SMALL, runtime=Runtime(precision="float32", chunk=64))
    with pytest.raises(TrainingError, match="S_pri of 28 is nan: the semi-trained network diverged; train it with"):
        scorers.score([NO_POLICY], "given")


def test_policies_of_one_search_are_those_of_the_seed() -> None:
    assert names(search()) == names(search())
    assert names(search(seed=1)) != names(search())
    assert isinstance(random_policies(SMALL, 1)[0], Policy)
