"""What the server sends, and what comes back: an honest one sends the network, a malicious one a changed copy."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from gradveil.attacks import ActiveAttack, Attack
from gradveil.client import Client, Step, check, step
from gradveil.defenses import Defense
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, Gradients, Knowledge, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What an adversary is granted.

    Args:
        knowledge: beyond the model and the update.
        auxiliary: public material, if `knowledge` grants it.
    """

    knowledge: Knowledge = Knowledge.NOTHING
    auxiliary: Auxiliary | None = None

    @property
    def public(self) -> Auxiliary | None:
        """The public material, None if it was not granted."""
        return self.auxiliary if Knowledge.AUXILIARY in self.knowledge else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A step that clients took on the network of a server, with what the auditor compares it with.

    Args:
        step: both sides of the wall.
        plain: (V, *shape) by name, what the same clients would have shared of the same network without any defense.
        start: (*shape) or (V, *shape) by name, to be subtracted from what is shared to see the change: the weights
            where clients share weights, else nothing.
        defenses: of the clients.
        seconds: that it took.
    """

    step: Step
    plain: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    defenses: tuple[Defense, ...] = ()
    seconds: float

    def clean(self) -> Gradients:
        """Return the plain update as the observation names it; what came before the update defenses, if it differs."""
        names = self.step.observation.names
        if set(names) <= set(self.plain):
            return tuple(self.plain[name] for name in names)
        return self.step.evidence.clean


def serve(
    batch: Batch,
    client: Client,
    attack: Attack,
    *,
    granted: Granted,
    seed: int,
    parameters: State | None = None,
    buffers: State | None = None,
) -> Served:
    """Let V clients train on the network that the adversary's server sends them.

    Args:
        batch: of every client.
        client: with the network as an honest server would send it.
        attack: the adversary; a malicious one changes the network, and may ask the same clients several times: each
            time they train anew on their batches, from what they kept for themselves, and the last update is observed.
        granted: what the adversary is granted.
        seed: of all randomness.
        parameters: (V, *shape) weights by name, where the clients' models differ.
        buffers: (V, *shape) buffers by name, where they differ.
    """
    began = time.monotonic()
    check(batch)
    size, channels, height, width = batch.inputs.shape[1:]
    shape, public = (size, channels, height, width), granted.public
    client = replace(client, model=served(attack, client.model, input_shape=shape, auxiliary=public, seed=seed))
    clients = _Clients(batch=batch, granted=granted, seed=seed, buffers=buffers)
    shared, last = clients.answer(client, weights=parameters), 0
    if isinstance(attack, ActiveAttack) and attack.queries > 1:
        shared, last = clients.asked_again(shared, client, attack, weights=parameters), attack.queries - 1

    weights = shared.observation.parameters
    changed = len(client.update_defenses) < len(client.defenses)
    bare = clients.answer(replace(client, defenses=()), weights=weights, query=last) if changed else shared
    plain = dict(zip(bare.observation.names, bare.evidence.clean, strict=True))
    start = dict(client.model.named_parameters()) | dict(weights or {}) if client.local.shares == "weights" else {}
    return Served(
        step=shared,
        plain=plain,
        start={name: start[name].detach() for name in plain if name in start},
        defenses=client.defenses,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    """V clients with their private batches, who answer a server as often as it asks."""

    batch: Batch
    granted: Granted
    seed: int
    buffers: State | None

    def answer(self, client: Client, *, weights: State | None, query: int = 0, kept: State | None = None) -> Step:
        """Take the step of one query, with randomness of its own."""
        streams = Streams(seed=self.seed, purpose="client")
        return step(
            self.batch,
            client,
            streams=streams.fork(f"query-{query}") if query else streams,
            knowledge=self.granted.knowledge,
            auxiliary=self.granted.public,
            parameters=weights,
            buffers=self.buffers,
            kept=kept,
        )

    def asked_again(self, first: Step, client: Client, attack: ActiveAttack, *, weights: State | None) -> Step:
        """Return the last of the steps in which the server asks again, each time after reading all answers."""
        taken, history = first, [first.observation]
        for query in range(1, attack.queries):
            sent = {**(weights or {}), **attack.poison_again(history, auxiliary=self.granted.public)}
            taken = self.answer(client, weights=sent or None, query=query, kept=taken.kept)
            history.append(taken.observation)
        return taken


def served(
    attack: Attack,
    model: nn.Module,
    *,
    input_shape: tuple[int, int, int, int],
    auxiliary: Auxiliary | None,
    seed: int,
) -> nn.Module:
    """Return the network that the server of an attack sends; an honest one sends what it has.

    Args:
        attack: the adversary.
        model: as an honest server would send it; it is left alone.
        input_shape: (B, C, H, W) of a client's batch.
        auxiliary: public material that was granted.
        seed: of the server's randomness.

    Example:
        >>> from gradveil.attacks import DLG, TrapWeights
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> served(DLG(), model, input_shape=(1, 1, 2, 2), auxiliary=None, seed=0) is model
        True
        >>> served(TrapWeights(), model, input_shape=(1, 1, 2, 2), auxiliary=None, seed=0) is model
        False
    """
    if not isinstance(attack, ActiveAttack):
        return model
    streams = Streams(seed=seed, purpose="server")
    return attack.poison(model, input_shape=input_shape, auxiliary=auxiliary, streams=streams)
