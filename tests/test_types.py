import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradveil.types import Batch, Knowledge, LocalTraining, Observation, Protected, Reconstruction


def observation() -> Observation:
    return Observation(
        model=nn.Linear(2, 2),
        mode="eval",
        names=("weight",),
        update=(torch.arange(8.0).view(4, 2), torch.arange(4.0)),
        loss=F.cross_entropy,
        input_shape=(1, 1, 1, 2),
        num_classes=2,
        labels=torch.arange(4)[:, None],
        parameters={"weight": torch.arange(16.0).view(4, 2, 2)},
        buffers={},
        buffers_after={"mean": torch.arange(4.0)},
    )


@pytest.mark.parametrize("victims", [[2, 0], slice(1, 3), [3]])
def test_selecting_victims_selects_everything_that_is_theirs(victims: list[int] | slice) -> None:
    whole, some = observation(), observation().select(victims)
    expected = list(range(4))[victims] if isinstance(victims, slice) else victims
    assert some.victims == len(expected)
    assert some.labels is not None
    assert some.parameters is not None
    assert some.buffers_after is not None
    assert some.labels.flatten().tolist() == expected
    assert some.buffers_after["mean"].tolist() == expected
    assert torch.equal(some.update[0], whole.update[0][expected])
    assert torch.equal(some.parameters["weight"], (whole.parameters or {})["weight"][expected])
    assert (some.input_shape, some.num_classes, some.auxiliary) == (whole.input_shape, whole.num_classes, None)


def test_repeating_repeats_each_victim_in_place() -> None:
    assert observation().repeat(3).update[1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    single = observation()
    assert single.repeat(1) is single


def test_an_unchanged_batch_comes_from_itself() -> None:
    batch = Batch(torch.rand(2, 3, 1, 4, 4), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
    protected = Protected.unchanged(batch)
    assert protected.origin.shape == protected.weights.shape == (2, 3, 1)
    assert protected.origin[1, :, 0].tolist() == [0, 1, 2]
    assert bool((protected.weights == 1).all())
    some = batch.select([1])
    assert some.victims == 1
    assert some.sensitive is not None
    assert some.sensitive.shape == (1, 3)
    assert torch.equal(protected.select(slice(1, 2)).inputs, batch.inputs[1:])
    assert batch.to("meta").labels.is_meta


def test_knowledge_is_named_as_spec_files_spell_it() -> None:
    assert Knowledge.NOTHING.names() == ()
    assert (Knowledge.LABELS | Knowledge.LOCAL_TRAINING).names() == ("labels", "local-training")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0, "shares": "weights"}, "steps must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 and finite, got -1.0"),
        ({"weight_decay": math.nan}, "weight_decay must be at least 0 and finite, got nan"),
        ({"steps": 2}, "2 local steps shares a difference or weights"),
    ],
)
def test_local_training_that_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalTraining(**wrong)  # type: ignore[arg-type]


def test_joined_chunks_are_one_reconstruction() -> None:
    def part(first: int, count: int) -> Reconstruction:
        numbers = torch.arange(first, first + count)
        return Reconstruction(
            inputs=numbers.float().view(-1, 1, 1, 1, 1),
            objective=numbers.float(),
            diverged=numbers > 2,
            steps=numbers,
            trace=numbers[:, None].float(),
            captured=True,
            chunk=count,
        )

    joined = Reconstruction.join([part(0, 3), replace(part(3, 2), captured=False)])
    assert joined.inputs.flatten().tolist() == [0, 1, 2, 3, 4]
    assert joined.steps.tolist() == [0, 1, 2, 3, 4]
    assert joined.diverged.tolist() == [False, False, False, True, True]
    assert joined.labels is None
    assert (joined.chunk, joined.captured) == (3, False)
