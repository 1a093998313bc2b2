"""The mod that looks at what the server sends, before the client trains on it."""

import copy
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from gradveil.errors import SpecError
from gradveil.federated.vetting import Policy, Probe, fingerprint, read_state
from gradveil.federated.vetting import vet as vet_model
from gradveil.flower._messages import Memory, client_of, is_training, read_arrays, round_of
from gradveil.types import State

Reference: TypeAlias = State | Path | str | Literal["last"] | None
_log = logging.getLogger(__name__)


def vet(
    *,
    policy: Policy = "refuse",
    reference: Reference = None,
    model: nn.Module | None = None,
    probe: Probe | None = None,
    fingerprints: Path | str | None = None,
) -> Mod:
    """Make a mod that vets every model before the client trains on it; put it first.

    A refused model is not trained on: the client answers with an error, whose reason stays in the client's log.

    Args:
        policy: `refuse`, `warn` or `continue`.
        reference: a trusted model, by tensors or as a safetensors file; `last` takes the one of the round before.
        model: of the architecture, to try on the probe.
        probe: own samples, which stay here.
        fingerprints: text file to which round and fingerprint of every model are added, for clients to compare.

    Example:
        >>> vet(policy="warn").policy
        'warn'
    """
    if policy not in {"refuse", "warn", "continue"}:
        raise SpecError(f"policy must be refuse, warn or continue, got '{policy}'")
    if probe is not None and model is None:
        raise SpecError("a probe tries a model, so that vet(probe=...) needs model=... too")
    trusted = reference
    if reference != "last" and isinstance(reference, Path | str):
        trusted = read_state(reference)
    file = None if fingerprints is None else Path(fingerprints)
    return Vet(policy=policy, reference=trusted, model=model, probe=probe, fingerprints=file)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vet:
    """The mod; see `vet`."""

    policy: Policy
    reference: Reference
    model: nn.Module | None
    probe: Probe | None
    fingerprints: Path | None
    memory: Memory = field(default_factory=lambda: Memory("gradveil-vet"))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Look, and let the app train if the policy allows it."""
        if not is_training(message):
            return call_next(message, context)
        state = read_arrays(message.content)
        self._note(state, message, context)
        found = vet_model(self._network(state), self._trusted(context), probe=self.probe)
        for item in found.items:
            _log.warning("round %d: %s", round_of(message), item)
        found.enforce(self.policy)
        if self.reference == "last" and found.verdict == "clean":
            self.memory.save(context, state)
        return call_next(message, context)

    def _network(self, state: State) -> nn.Module | State:
        """Fill the model, so that it can be tried; a probe without one was refused before."""
        if self.model is None or self.probe is None:
            return state
        filled = copy.deepcopy(self.model)
        filled.load_state_dict(dict(state))
        return filled

    def _trusted(self, context: Context) -> State | None:
        if self.reference == "last":
            return self.memory.load(context) or None
        return self.reference  # type: ignore[return-value]

    def _note(self, state: State, message: Message, context: Context) -> None:
        if self.fingerprints is None:
            return
        self.fingerprints.parent.mkdir(parents=True, exist_ok=True)
        with self.fingerprints.open("a", encoding="utf-8") as file:
            file.write(f"round {round_of(message)} client {client_of(context)} {fingerprint(state)}\n")
