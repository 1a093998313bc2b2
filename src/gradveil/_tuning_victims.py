"""Victims that an adversary simulates from public images, and how well it does on them."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gradveil._encoded import in_unit, known_bounds
from gradveil.client import Client, Step, step
from gradveil.defenses import Defense
from gradveil.errors import DataError
from gradveil.metrics import PSNR, align, arrange, correlation, draw_decoys, identify
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Batch, LocalTraining, Observation, Reconstruction, State

_DECOYS = 1000


def simulate(observation: Observation, auxiliary: Auxiliary, *, victims: int, streams: Streams) -> Step:
    """Let clients of the adversary's own train as the observed ones do, as far as it knows how.

    They take the model that was observed, its loss and mode, local training and defenses where the adversary knows of
    them (one plain gradient where not), and batches of public images; what is secret at a client is drawn anew.

    Args:
        observation: what the adversary saw; of its update nothing is used.
        auxiliary: public images with labels.
        victims: how many to simulate; where the observed models differ, they take them in turn.
        streams: the adversary's randomness.
    """
    client = Client(
        model=observation.model,
        loss=observation.loss,
        defenses=tuple(d for d in observation.defenses or () if isinstance(d, Defense)),
        local=observation.local or LocalTraining(),
        mode=observation.mode,
        pool=None if auxiliary.inputs is None else auxiliary.inputs.to(observation.device, observation.dtype),
    )
    models = [victim % observation.victims for victim in range(victims)]
    streams = replace(streams, keys=()).fork("client")

    def taken(size: int) -> Step:
        return step(
            _batch(observation, auxiliary, victims=victims, size=size, streams=streams),
            client,
            streams=streams,
            knowledge=observation.knowledge,
            auxiliary=auxiliary,
            parameters=_select(observation.parameters, models),
            buffers=_select(observation.buffers, models),
        )

    announced = observation.input_shape[0]
    made = taken(announced)
    seen = made.observation.input_shape[0]
    # A defense that feeds the model more samples than the client has announces those.
    return made if seen == announced else taken(max(1, announced * announced // seen))


def scores(guess: Reconstruction, made: Step) -> Tensor:
    """Return (V,) each simulated victim's mean PSNR in dB, against its private images."""
    order, truth = _order_and_truth(guess, made)
    return PSNR()(arrange(guess.inputs, order), truth).mean(1)


def ranks(guess: Reconstruction, made: Step, auxiliary: Auxiliary, *, streams: Streams) -> Tensor:
    """Return (V, B') where each private image stands among public ones, 0 if it correlates most with its guess."""
    order, truth = _order_and_truth(guess, made)
    decoys = _decoys(auxiliary, streams)
    return identify(arrange(guess.inputs, order), truth, decoys.to(truth), view=correlation)


def nearness(ranks: Tensor, auxiliary: Auxiliary) -> Tensor:
    """Turn ranks among n public images into 1 for the first and 0 for the last, by 1 - log(1 + rank) / log(1 + n).

    Few victims decide more by it than by who came first: it tells the tenth from the hundredth.

    Example:
        >>> public = Auxiliary(inputs=torch.zeros(999, 1, 2, 2))
        >>> [round(float(near), 3) for near in nearness(torch.tensor([0.0, 9.0, 99.0, 999.0]), public)]
        [1.0, 0.667, 0.333, 0.0]
    """
    assert auxiliary.inputs is not None
    return 1 - ranks.log1p() / math.log1p(min(_DECOYS, len(auxiliary.inputs)))


def _decoys(auxiliary: Auxiliary, streams: Streams) -> Tensor:
    assert auxiliary.inputs is not None
    return draw_decoys(auxiliary.inputs, count=min(_DECOYS, len(auxiliary.inputs)), streams=streams)


def _order_and_truth(guess: Reconstruction, made: Step) -> tuple[Tensor, Tensor]:
    """Return (V, B') which guess belongs to which sample, and (V, B', C, H, W) the private image behind each."""
    protected = made.evidence.protected
    bounds = known_bounds(made.observation)
    of_seen = in_unit(guess.inputs if guess.protected is None else guess.protected, *bounds)
    order = align(of_seen, in_unit(protected.inputs, *bounds).clamp(0, 1))
    heaviest = protected.origin.gather(2, protected.weights.argmax(2, keepdim=True)).squeeze(2)
    rows = torch.arange(len(order), device=order.device)[:, None]
    return order, made.evidence.batch.inputs[rows, heaviest]


def _batch(observation: Observation, auxiliary: Auxiliary, *, victims: int, size: int, streams: Streams) -> Batch:
    """Draw the batches of all victims from the public images, none twice."""
    inputs, labels = auxiliary.inputs, auxiliary.labels
    if inputs is None or labels is None:
        raise DataError("simulated victims need public images with labels; give both as auxiliary")
    if inputs.shape[1:] != observation.input_shape[1:]:
        came, wanted = tuple(inputs.shape[1:]), observation.input_shape[1:]
        raise DataError(f"public images must have the victims' shape {wanted}, got {came}")
    if len(inputs) < victims * size:
        raise DataError(
            f"{victims} simulated victims of batch size {size} need {victims * size} public images, got {len(inputs)}"
        )
    drawn = streams.bind(1).permutation("batch", len(inputs))[0, : victims * size]
    images = inputs[drawn.to(inputs.device)].to(observation.device, observation.dtype)
    classes = labels[drawn.to(labels.device)].to(observation.device)
    return Batch(images.unflatten(0, (victims, size)), classes.unflatten(0, (victims, size)))


def _select(state: State | None, victims: list[int]) -> State | None:
    return None if state is None else {name: tensor[victims] for name, tensor in state.items()}
