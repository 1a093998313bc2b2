"""Randomness as an argument: one named, counter-based stream per victim."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Fill(Protocol):
    """Overwrites a tensor by random numbers."""

    def __call__(self, row: Tensor, /, *, generator: torch.Generator) -> Tensor:
        """Fill it in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The random streams of a stack of victims.

    A draw is a pure function of (seed, purpose, victim, name): it depends neither on what was drawn before, nor on who
    else is in the stack, nor on the device, because numbers are drawn on the CPU and moved. Give each draw its own
    name; the same name gives the same numbers again.

    Streams that are `on_device` draw large noise where it is used, for a training whose steps a CPU would hold up. On
    the CPU nothing changes; on a GPU the numbers are others, and repeat on the same kind of GPU and version of torch.

    Args:
        seed: of the run.
        purpose: `client`, `attack`, ...: an attack can never replay the client's noise.
        keys: one key per victim; the first number is the victim, further ones are restarts. Empty means unbound:
            an attack binds it to the victims of its observation.
        on_device: draw normal, uniform and Laplace numbers on the device of `like`.

    Example:
        >>> streams = Streams(seed=0, purpose="attack").bind(3)
        >>> streams.normal("start", (2, 2)).shape
        torch.Size([3, 2, 2])
        >>> bool((streams.select([2]).normal("start", (2, 2)) == streams.normal("start", (2, 2))[2]).all())
        True
    """

    seed: int = 0
    purpose: str = "attack"
    keys: tuple[tuple[int, ...], ...] = ()
    on_device: bool = False

    def bind(self, victims: int) -> Self:
        """Number the victims 0 .. victims - 1, unless the streams are bound already."""
        if self.keys and len(self.keys) != victims:
            raise ValueError(f"the streams are bound to {len(self.keys)} victims, but the stack holds {victims}")
        return self if self.keys else replace(self, keys=tuple((v,) for v in range(victims)))

    def select(self, victims: Sequence[int] | slice) -> Self:
        """Keep some victims."""
        kept = self.keys[victims] if isinstance(victims, slice) else tuple(self.keys[v] for v in victims)
        return replace(self, keys=kept)

    def repeat(self, times: int) -> Self:
        """Give every victim `times` streams of its own, in the order of `Observation.repeat`; its first stays."""
        numbers = [() if restart == 0 else (restart,) for restart in range(times)]
        return replace(self, keys=tuple((*key, *number) for key in self.keys for number in numbers))

    def fork(self, name: str) -> Self:
        """Open a separate family of streams, for a part of a run that must not disturb the rest."""
        return replace(self, purpose=f"{self.purpose}/{name}")

    def normal(self, name: str, shape: Sequence[int], *, like: Tensor | None = None) -> Tensor:
        """Draw (V, *shape) standard normal numbers, in the format and on the device of `like`."""
        if like is not None and self._there(like):
            return draw_there(self._seeds(name), shape, like=like, fill=Tensor.normal_)
        return _stack([g.standard_normal(tuple(shape), dtype=np.float32) for g in self._generators(name)], like)

    def uniform(self, name: str, shape: Sequence[int], *, like: Tensor | None = None) -> Tensor:
        """Draw (V, *shape) numbers uniform in [0, 1)."""
        if like is not None and self._there(like):
            return draw_there(self._seeds(name), shape, like=like, fill=Tensor.uniform_)
        return _stack([g.random(tuple(shape), dtype=np.float32) for g in self._generators(name)], like)

    def laplace(self, name: str, shape: Sequence[int], *, like: Tensor | None = None) -> Tensor:
        """Draw (V, *shape) Laplace numbers of scale 1."""
        if like is not None and self._there(like):
            return draw_there(self._seeds(name), shape, like=like, fill=_fill_laplace)
        draws = [g.laplace(size=tuple(shape)).astype(np.float32) for g in self._generators(name)]
        return _stack(draws, like)

    def integers(self, name: str, high: int, shape: Sequence[int], *, device: torch.device | str = "cpu") -> Tensor:
        """Draw (V, *shape) whole numbers uniform in 0 .. high - 1."""
        draws = np.stack([g.integers(high, size=tuple(shape)) for g in self._generators(name)])
        return torch.from_numpy(draws).to(device)

    def permutation(self, name: str, size: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Draw (V, size), one permutation of 0 .. size - 1 per victim."""
        return torch.from_numpy(np.stack([g.permutation(size) for g in self._generators(name)])).to(device)

    def _generators(self, name: str) -> list[np.random.Generator]:
        if not self.keys:
            raise ValueError("these streams belong to no victim yet; call bind(victims) first")
        return [np.random.Generator(np.random.Philox(key=self._key(key, name))) for key in self.keys]

    def _there(self, like: Tensor) -> bool:
        return self.on_device and like.device.type != "cpu"

    def _seeds(self, name: str) -> list[int]:
        if not self.keys:
            raise ValueError("these streams belong to no victim yet; call bind(victims) first")
        return [self._key(key, name) % 2**63 for key in self.keys]

    def _key(self, key: tuple[int, ...], name: str) -> int:
        text = f"{self.seed}|{self.purpose}|{'.'.join(map(str, key))}|{name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def _stack(draws: list[npt.NDArray[np.float32]], like: Tensor | None) -> Tensor:
    stacked = torch.from_numpy(np.stack(draws))
    return stacked if like is None else stacked.to(device=like.device, dtype=like.dtype)


def draw_there(seeds: Sequence[int], shape: Sequence[int], *, like: Tensor, fill: Fill) -> Tensor:
    """Draw one row of numbers per seed, in the format and on the device of `like`.

    Example:
        >>> draw_there([1, 2, 1], (4,), like=torch.zeros(()), fill=Tensor.normal_).unique(dim=0).shape
        torch.Size([2, 4])
    """
    drawn = torch.empty((len(seeds), *shape), device=like.device, dtype=torch.float32)
    for row, seed in zip(drawn, seeds, strict=True):
        fill(row, generator=torch.Generator(like.device).manual_seed(seed))
    return drawn.to(like.dtype)


def _fill_laplace(row: Tensor, *, generator: torch.Generator) -> Tensor:
    """The difference of two exponential numbers is a Laplace number."""
    return row.exponential_(generator=generator).sub_(torch.empty_like(row).exponential_(generator=generator))
