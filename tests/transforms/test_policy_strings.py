"""Policies as text, their canonical forms, and random ones."""

from collections import Counter

import pytest
import torch

from gradveil.errors import SpecError
from gradveil.streams import Streams
from gradveil.transforms import (
    OPERATIONS,
    Hybrid,
    Policy,
    Variants,
    all_variants,
    draw_policies,
    draw_variants,
    draw_views,
    parse_policy,
    share_functions,
    transform_bytes,
)


@pytest.mark.parametrize("text", ["0", "3-1-7", "43-18-18", "3-1-7+43-18-18", "21-13-3+7-4-15+28"])
def test_text_comes_back_as_it_was(text: str) -> None:
    assert str(parse_policy(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is empty at position 1"),
        ("3-1-7+", "is empty at position 7"),
        ("3-50", "'50' at position 3 is not an index from 0 to 49"),
        ("3--1", "'' at position 3"),
        ("3-x-7+1", "'x' at position 3"),
        ("3+4-5-99", "'99' at position 7"),
        ("1-2-3-4", "'1-2-3-4' has 4 operations, at most 3"),
        ("9" * 5000, "at position 1"),
    ],
)
def test_a_mistake_is_shown_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match="policy") as raised:
        parse_policy(text)
    assert complaint in str(raised.value)


def test_longer_policies_are_read_where_they_are_allowed() -> None:
    assert parse_policy("1-2-3-4", longest=4).length == 4


def test_constructors_refuse_what_text_could_not_say() -> None:
    for operations in ((), (50,), (-1,)):
        with pytest.raises(ValueError, match="operation"):
            Policy(operations)
    with pytest.raises(ValueError, match="at least one policy"):
        Hybrid(())


def test_a_canonical_form_does_what_the_policy_does() -> None:
    images = torch.randint(256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for text in ("48-28-46", "49-47-34", "39-28", "45-3-39"):
        policy = parse_policy(text).policies[0]
        forms = (policy, policy.canonical())
        kept = [place for place, code in enumerate(policy.operations) if not OPERATIONS[code].identity] or [0]
        signs = torch.tensor([[1, -1, 1], [-1, 1, -1], [1, 1, 1], [-1, -1, -1]])
        made = [
            transform_bytes(images, Variants(torch.tensor([form.operations] * 4), own))
            for form, own in zip(forms, (signs[:, : len(policy.operations)], signs[:, kept]), strict=True)
        ]
        assert torch.equal(*made), text


def test_no_two_functions_do_the_same_to_grey_images() -> None:
    levels = torch.arange(256).repeat(4).view(1, 1, 32, 32).to(torch.uint8)
    few = torch.randint(40, 200, (2, 1, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    images = torch.cat([levels, few])
    found: dict[bytes, int] = {}
    for code in range(50):
        form = Policy((code,)).canonical(channels=1).operations[0]
        for sign in (1, -1) if OPERATIONS[code].signed else (1,):
            shape = (len(images), 1)
            made = transform_bytes(images, Variants(torch.full(shape, code), torch.full(shape, sign)))
            assert found.setdefault(made.numpy().tobytes(), form) == form
            assert torch.equal(made, images) == OPERATIONS[code].idle(1)
    assert len(set(found.values())) == 25


def test_published_hybrids_have_no_common_function() -> None:
    assert not share_functions(Policy((3, 1, 7)), Policy((43, 18, 18)))
    assert not share_functions(Policy((28,)), Policy((28, 3)))
    assert share_functions(Policy((24,)), Policy((48, 3)))


def test_all_variants_are_each_policy_with_each_combination_of_signs() -> None:
    variants = all_variants(parse_policy("3-1-7+0-9+18"))
    rows = list(map(tuple, torch.cat(variants, 1).tolist()))
    assert len(rows) == len(set(rows)) == 8 + 1 + 2


def test_drawn_variants_are_those_of_the_hybrid_and_fair() -> None:
    hybrid = parse_policy("3-1-7+43-18-18")
    drawn = draw_variants(hybrid, size=400, streams=Streams(seed=0, purpose="client").bind(2))
    known = {tuple(row) for row in torch.cat(all_variants(hybrid), 1).tolist()}
    counts = Counter(map(tuple, torch.cat(drawn, 2).flatten(0, 1).tolist()))
    assert set(counts) == known
    assert min(counts.values()) > 25


def test_a_victim_draws_the_same_alone_and_in_company() -> None:
    hybrid, streams = parse_policy("3-1-7+43-18-18"), Streams(seed=3, purpose="client").bind(4)
    alone = streams.select([2])
    for make in (lambda s: draw_variants(hybrid, size=5, streams=s), lambda s: draw_views(size=5, streams=s)):
        for together, single in zip(make(streams), make(alone), strict=True):
            assert torch.equal(together[2:3], single)


@pytest.mark.parametrize("sampling", ["paper", "reference"])
def test_random_policies_have_the_lengths_of_their_distribution(sampling: str) -> None:
    drawn = draw_policies(
        Streams(seed=0, purpose="search").bind(3000),
        length=3,
        sampling="paper" if sampling == "paper" else "reference",
    )
    lengths = Counter(len(policy.operations) for policy in drawn)
    expected = 50**3 / (50 + 50**2 + 50**3) if sampling == "paper" else (50 / 51) ** 3
    assert abs(lengths[3] / 3000 - expected) < 0.015
    used = Counter(code for policy in drawn for code in policy.operations)
    assert set(used) == set(range(50))
    assert max(used.values()) < 1.5 * min(used.values())


def test_random_policies_of_one_operation_are_all_fifty() -> None:
    drawn = draw_policies(Streams(seed=0, purpose="search").bind(500), length=1)
    assert {policy.operations for policy in drawn} == {(code,) for code in range(50)}


def test_refuses_to_draw_policies_without_operations() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        draw_policies(Streams().bind(1), length=0)
