"""Policies: `3-1-7` applies three operations in order, `3-1-7+43-18-18` one of two policies drawn for each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from gradveil.errors import SpecError
from gradveil.streams import Streams
from gradveil.transforms._table import OPERATIONS, canonical_index

LONGEST: Final = 3
"""Operations of a policy in the paper (its k)."""

Sampling: TypeAlias = Literal["paper", "reference"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Operations that are applied one after the other.

    Args:
        operations: indices from 0 to 49; at least one.

    Example:
        >>> str(Policy((3, 1, 7))), Policy((3, 1, 7)).describe()
        ('3-1-7', 'translate-x 9, contrast 6, translate-y 2')
    """

    operations: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.operations:
            raise ValueError("a policy must hold at least one operation, got none")
        for index in self.operations:
            if not 0 <= index < len(OPERATIONS):
                raise ValueError(f"an operation must be an index from 0 to {len(OPERATIONS) - 1}, got {index}")

    def __str__(self) -> str:
        return "-".join(map(str, self.operations))

    @property
    def functions(self) -> frozenset[int]:
        """The functions it uses, each by its smallest index."""
        return frozenset(map(canonical_index, self.operations))

    @property
    def identity(self) -> bool:
        """Whether it changes nothing."""
        return all(OPERATIONS[index].identity for index in self.operations)

    def canonical(self, *, channels: int = 3) -> "Policy":
        """Return the form that all policies of the same functions share: smallest indices, no idle operations.

        Args:
            channels: of the images; in grey ones, operations on colour are idle too.

        Example:
            >>> str(Policy((48, 28, 46)).canonical()), str(Policy((39, 28)).canonical())
            ('24-9', '28')
            >>> str(Policy((20, 3)).canonical(channels=1))
            '3'
        """
        kept = tuple(canonical_index(index) for index in self.operations if not OPERATIONS[index].idle(channels))
        return Policy(kept) if kept else NO_POLICY

    def describe(self) -> str:
        """Name the operations."""
        return ", ".join(str(OPERATIONS[index]) for index in self.operations)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Policies of which each image draws one; a single policy is a hybrid of one.

    Args:
        policies: at least one.
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("a hybrid must hold at least one policy, got none")

    def __str__(self) -> str:
        return "+".join(map(str, self.policies))

    @property
    def length(self) -> int:
        """Operations of the longest policy."""
        return max(len(policy.operations) for policy in self.policies)

    @property
    def identity(self) -> bool:
        """Whether it changes nothing."""
        return all(policy.identity for policy in self.policies)

    def codes(self, choices: Tensor) -> Tensor:
        """Return the operations (*choices.shape, length) of the policies drawn; -1 where a policy is shorter.

        Example:
            >>> parse_policy("3-1+7").codes(torch.tensor([0, 1])).tolist()
            [[3, 1], [7, -1]]
        """
        return _padded(self.policies, self.length)[choices]


def parse_policy(text: str, *, longest: int = LONGEST) -> Hybrid:
    """Read `3-1-7` or `3-1-7+43-18-18`; a mistake is shown with its place.

    Args:
        text: indices from 0 to 49 joined by `-`, policies joined by `+`.
        longest: operations of one policy at most.

    Example:
        >>> parse_policy("3-1-7+43-18-18").policies[1].operations
        (43, 18, 18)
    """
    policies, place = [], 0
    for part in text.split("+"):
        policies.append(Policy(_operations(part, text, place, longest)))
        place += len(part) + 1
    return Hybrid(tuple(policies))


def share_functions(first: Policy, second: Policy) -> bool:
    """Tell whether two policies use a common function, which the paper forbids in a hybrid; idle ones do not count.

    Example:
        >>> share_functions(Policy((3, 1, 7)), Policy((43, 18, 18))), share_functions(Policy((9,)), Policy((46,)))
        (False, True)
    """
    return any(not OPERATIONS[index].identity for index in first.functions & second.functions)


def draw_policies(streams: Streams, *, length: int = LONGEST, sampling: Sampling = "paper") -> tuple[Policy, ...]:
    """Draw one random policy per stream.

    Args:
        streams: one key per policy.
        length: operations at most.
        sampling: `paper` makes all 50 + 50² + ... policies equally likely; `reference` fills each place with nothing
            or one of 50 operations, all equally likely, and draws again where all places stay empty.

    Example:
        >>> [str(policy) for policy in draw_policies(Streams(seed=0, purpose="search").bind(3), length=2)]
        ['33-25', '41-12', '15-42']
    """
    if length < 1:
        raise SpecError(f"the length of a policy must be at least 1, got {length}")
    draw = _draw_evenly if sampling == "paper" else _draw_places
    return tuple(draw(streams.select([i]), length) for i in range(len(streams.keys)))


def _draw_evenly(streams: Streams, length: int) -> Policy:
    count = len(OPERATIONS)
    number = int(streams.integers("policy", sum(count**k for k in range(1, length + 1)), ()))
    digits: list[int] = []
    # Numbers count all policies of one operation first, then those of two, and so on.
    while number >= 0:
        number, digit = divmod(number, count)
        digits.append(digit)
        number -= 1
    return Policy(tuple(reversed(digits)))


def _draw_places(streams: Streams, length: int) -> Policy:
    for attempt in range(_ATTEMPTS):
        places = (streams.integers(f"places/{attempt}", len(OPERATIONS) + 1, (length,))[0] - 1).tolist()
        filled = tuple(index for index in places if index >= 0)
        if filled:
            return Policy(filled)
    raise AssertionError("unreachable: the chance is 51 to the power of minus 100")


def _operations(part: str, text: str, place: int, longest: int) -> tuple[int, ...]:
    where = f"policy '{text}'"
    if not part.strip():
        raise SpecError(f"{where} is empty at position {place + 1}; write indices from 0 to 49 such as 3-1-7")
    indices = []
    for item in part.split("-"):
        if not item.strip().isdecimal() or len(item.strip()) > 2 or int(item) >= len(OPERATIONS):
            wrong = f"'{item}' at position {place + 1} is not an index from 0 to {len(OPERATIONS) - 1}"
            raise SpecError(f"{where}: {wrong}; write indices such as 3-1-7")
        indices.append(int(item))
        place += len(item) + 1
    if len(indices) > longest:
        raise SpecError(f"{where}: '{part}' has {len(indices)} operations, at most {longest} are allowed; remove some")
    return tuple(indices)


def _padded(policies: Sequence[Policy], length: int) -> Tensor:
    rows = [policy.operations + (-1,) * (length - len(policy.operations)) for policy in policies]
    return torch.tensor(rows)


_ATTEMPTS: Final = 100

NO_POLICY: Final = Policy((next(index for index, operation in enumerate(OPERATIONS) if operation.identity),))
"""The policy that changes nothing, in canonical form."""
