"""What every adversary is."""

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, final

from gradveil.engine import Runtime, in_chunks, without_dropout
from gradveil.errors import KnowledgeError
from gradveil.streams import Streams
from gradveil.types import Card, Gradients, Knowledge, Observation, Paper, Reconstruction, State


class Attack(ABC):
    """Guesses a private batch from an observation; a leaf is a frozen dataclass whose fields are hyperparameters.

    Class attributes:
        paper: where the attack comes from.
        requires: what it cannot do without.
        threat: the letter of its threat model, A to H, as the field uses them.
        batches: sizes of batches that it is for.
        whole: whether it goes for all images of a batch, so that what it finds should explain the update.
        card: what to know before relying on it.
    """

    paper: ClassVar[Paper]
    requires: ClassVar[Knowledge] = Knowledge.NOTHING
    threat: ClassVar[str] = "B"
    batches: ClassVar[str] = "any, small ones best"
    whole: ClassVar[bool] = True
    card: ClassVar[Card]

    @final
    def __call__(self, observation: Observation, *, streams: Streams, runtime: Runtime | None = None) -> Reconstruction:
        """Attack all victims of an observation, in chunks that fit the device.

        Args:
            observation: what the adversary saw; neither its model nor its tensors are changed.
            streams: the attack's randomness; bound to the victims here if it is not yet.
            runtime: precision, chunk, progress, checkpoints.
        """
        missing = self.requires & ~observation.knowledge
        if missing:
            needs, knows = ", ".join(missing.names()), ", ".join(observation.knowledge.names()) or "nothing"
            raise KnowledgeError(f"{type(self).__name__} needs {needs}, but the adversary knows {knows}; grant it")
        runtime = runtime or Runtime()
        bound = streams.bind(observation.victims)
        model = without_dropout(copy.deepcopy(observation.model)).requires_grad_(False)
        own = replace(observation, model=model.to(observation.device))

        def run(victims: slice, runtime: Runtime) -> Reconstruction:
            return self.run(own.select(victims), streams=bound.select(victims), runtime=runtime)

        with runtime.numerics():
            parts, chunk = in_chunks(run, own.victims, device=own.device, runtime=runtime)
        return replace(Reconstruction.join(parts), chunk=chunk)

    @abstractmethod
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        """Attack one chunk: the paper's algorithm and nothing else."""

    def certify(self, observation: Observation, clean: Gradients) -> State:  # noqa: ARG002
        """State what can be proved of the guesses of `run`, (V, ...) by name; nothing unless an attack can.

        Args:
            observation: what the adversary saw.
            clean: the plain update, one (V, *shape) tensor per name; only the auditor has it, and calls this.
        """
        return {}
