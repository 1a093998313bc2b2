"""Starting from a given image: one of the public images that the adversary has."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradveil.errors import DataError, KnowledgeError
from gradveil.streams import Streams
from gradveil.types import Observation


@dataclass(frozen=True, slots=True)
class Given:
    """Public images to start from.

    Args:
        inputs: (N, C, H, W) in [0, 1], None if the adversary has none.
        allowed: (V, B, N) which of them are of the class of each sample; None if classes are not known.
    """

    inputs: Tensor | None = None
    allowed: Tensor | None = None

    @classmethod
    def of(cls, observation: Observation) -> "Given":
        """Read off an observation what its auxiliary material offers."""
        public, labels = observation.auxiliary, observation.labels
        if public is None or public.inputs is None:
            return cls()
        if public.labels is None or labels is None:
            return cls(public.inputs)
        classes = labels if labels.ndim == 2 else labels.argmax(2)
        return cls(public.inputs, classes[..., None] == public.labels.to(classes.device))

    def select(self, victims: Sequence[int]) -> "Given":
        """Keep some victims."""
        return self if self.allowed is None else Given(self.inputs, self.allowed[list(victims)])

    def draw(self, streams: Streams, shape: tuple[int, int, int, int]) -> Tensor:
        """Draw (V, B, C, H, W) images in [0, 1], of the right class where there is one; restarts draw others."""
        if self.inputs is None:
            raise KnowledgeError("start=image needs public images, but the adversary has none; grant auxiliary inputs")
        if self.inputs.shape[1:] != shape[1:]:
            came = tuple(self.inputs.shape[1:])
            raise DataError(f"start=image needs public images of shape {shape[1:]}, got {came}; resize them")
        scores = streams.uniform("image", (shape[0], len(self.inputs))).to(self.inputs.device)
        if self.allowed is not None:
            scores = scores + self.allowed.to(scores.device)
        return self.inputs[scores.argmax(2)]
