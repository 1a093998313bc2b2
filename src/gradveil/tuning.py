"""Tuning without cheating: an adversary chooses its settings on victims that it simulates itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from gradveil._encoded import in_known_range
from gradveil._tuning_space import Space, default_space, settings_of, steps_of
from gradveil._tuning_victims import nearness, ranks, scores, simulate
from gradveil.attacks import Attack, attack_each, attacks
from gradveil.client import Step
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, SpecError
from gradveil.streams import Streams
from gradveil.types import Auxiliary, Knowledge, Observation

A = TypeVar("A", bound=Attack)
Rule: TypeAlias = Literal["psnr", "identification"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one setting did on the simulated victims.

    Args:
        setting: of the attack, as a spec string.
        psnr: mean over the victims, in dB.
        error: its standard error.
        identified: share of their images that came first among public ones, by correlation.
        nearness: mean of 1 - log(1 + rank) / log(1 + n) among n public images: 1 if all came first.
        round: of successive halving, from 0.
    """

    setting: str
    psnr: float
    error: float
    identified: float
    nearness: float = 0.0
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How settings were chosen; plain values, for the record.

    Args:
        attack: as it was given, a spec string; it takes part in the search.
        chosen: the setting that won, with the attack's own steps.
        rule: what decided, `identification` (the largest `nearness`, among equals the psnr) or the highest mean `psnr`.
        victims: that were simulated.
        public: images that they were drawn from.
        seed: of the search.
        trials: every setting in the order it was tried, round by round.
        steps: of every attack in the search; 0 for the attack's own.
    """

    attack: str
    chosen: str
    rule: Rule
    victims: int
    public: int
    seed: int
    trials: tuple[Trial, ...]
    steps: int = 0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Search":
        """Read back what `dataclasses.asdict` wrote."""
        return cls(**{**values, "trials": tuple(Trial(**trial) for trial in values["trials"])})


def tune(
    attack: A,
    observation: Observation,
    *,
    auxiliary: Auxiliary | None = None,
    space: Space | None = None,
    victims: int = 8,
    limit: int = 24,
    rule: Rule = "identification",
    steps: int = 0,
    halvings: int = 0,
    streams: Streams | None = None,
    runtime: Runtime | None = None,
) -> tuple[A, Search]:
    """Return an attack with settings chosen on simulated victims, and the search; the observed updates play no part.

    The adversary lets clients of its own train on public images as it knows the observed ones do. It attacks them under
    all settings, and keeps the one whose guesses correlate with their own images more than other public images do. PSNR
    would favour smooth guesses, since grey beats noise.

    Args:
        attack: to tune; its own settings take part.
        observation: what the adversary saw; it must grant `Knowledge.AUXILIARY`.
        auxiliary: public images with labels; by default those of the observation.
        space: grids of settings; by default those that suit the attack.
        victims: to simulate.
        limit: settings beside the attack's own; more than that are drawn from at random.
        rule: `identification` or `psnr`.
        steps: of every attack in the search; 0 for its own, which the chosen one has again.
        halvings: rounds before the last, each with half the steps of the next and dropping the worse half.
        streams: the adversary's randomness.
        runtime: precision, chunk (of settings times victims), progress, checkpoints.

    Example:
        >>> import torch
        >>> from gradveil import Batch, attacks, observe
        >>> model, loss = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)), torch.nn.CrossEntropyLoss()
        >>> images, labels = Streams().bind(6).uniform("", (1, 1, 4, 4)), torch.tensor([[0], [1], [2]] * 2)
        >>> seen = observe(Batch(images[:2], labels[:2]), model, loss, knowledge=Knowledge.AUXILIARY)
        >>> public = Auxiliary(inputs=images[2:, 0], labels=labels[2:, 0])
        >>> attack = attacks.InvertingGradients(steps=9)
        >>> space = [{"lr": (0.3, 1e-9)}]
        >>> tuned, search = tune(attack, seen, auxiliary=public, space=space, victims=2, rule="psnr")
        >>> tuned.lr, len(search.trials)
        (0.3, 3)
    """
    _check(victims=victims, limit=limit, steps=steps, halvings=halvings)
    public = _public(attack, observation, auxiliary)
    streams = replace(streams or Streams(purpose="attack"), keys=()).fork("tuning")
    made = simulate(observation, public, victims=victims, streams=streams)
    settings = settings_of(attack, default_space(attack) if space is None else space, limit=limit, streams=streams)
    runtime = (runtime or Runtime()).named("tuning")
    lengths = [(steps, 2 ** (halvings - turn)) for turn in range(halvings + 1)]
    best, trials = _narrow(settings, made, public, rule=rule, lengths=lengths, streams=streams, runtime=runtime)
    return best, Search(
        attack=attacks.describe(attack), chosen=attacks.describe(best), rule=rule, victims=victims,
        public=0 if public.inputs is None else len(public.inputs), seed=streams.seed, trials=tuple(trials), steps=steps,
    )  # fmt: skip


def _narrow(
    settings: Sequence[A],
    made: Step,
    public: Auxiliary,
    *,
    rule: Rule,
    lengths: Sequence[tuple[int, int]],
    streams: Streams,
    runtime: Runtime,
) -> tuple[A, list[Trial]]:
    """Try settings in longer and longer rounds, keep the better half after each, and the best after the last.

    A length is a number of steps, 0 for a setting's own, and what they are divided by.
    """

    def rated(trial: Trial) -> tuple[float, float]:
        return (trial.psnr, trial.nearness) if rule == "psnr" else (trial.nearness, trial.psnr)

    trials: list[Trial] = []
    for turn, (steps, factor) in enumerate(lengths):
        shorter = [_shortened(_with_steps(setting, steps), factor) for setting in settings]
        tried = _try_all(shorter, made, public, streams=streams, runtime=runtime.named(f"round-{turn}"), turn=turn)
        order = sorted(range(len(tried)), key=lambda place: rated(tried[place]), reverse=True)
        settings = [settings[place] for place in order[: -(-len(order) // 2)]]
        trials += tried
    return settings[0], trials


def _check(*, victims: int, limit: int, steps: int, halvings: int) -> None:
    lowest = (("victims", victims, 2), ("limit", limit, 1), ("steps", steps, 0), ("halvings", halvings, 0))
    for name, value, least in lowest:
        if value < least:
            raise SpecError(f"{name} of tuning must be at least {least}, got {value}")


def _public(attack: Attack, observation: Observation, auxiliary: Auxiliary | None) -> Auxiliary:
    """Return the public images, if the adversary may have any."""
    name, knows = attacks.name_of(attack), ", ".join(observation.knowledge.names()) or "nothing"
    if Knowledge.AUXILIARY not in observation.knowledge:
        raise KnowledgeError(f"tuning {name} needs auxiliary images, but the adversary knows {knows}; grant auxiliary")
    public = auxiliary or observation.auxiliary
    if public is None:
        raise KnowledgeError(f"tuning {name} needs public images with labels, but auxiliary holds none; give some")
    return public


def _try_all(
    settings: Sequence[Attack], made: Step, public: Auxiliary, *, streams: Streams, runtime: Runtime, turn: int
) -> list[Trial]:
    """Attack the simulated victims under every setting, and score each against their truth."""
    seen, in_pixels = in_known_range(made.observation)
    guesses = attack_each(settings, seen, streams=streams.fork("attack"), runtime=runtime)
    found = []
    for setting, guess in zip(settings, map(in_pixels, guesses), strict=True):
        each, places = scores(guess, made).double(), ranks(guess, made, public, streams=streams)
        found.append(
            Trial(
                setting=attacks.describe(setting),
                psnr=float(each.mean()),
                error=float(each.std() / len(each) ** 0.5),
                identified=float((places < 0.5).double().mean()),
                nearness=float(nearness(places, public).double().mean()),
                round=turn,
            )
        )
    return found


def _shortened(setting: A, factor: int) -> A:
    """Divide the steps of a setting, where it has any."""
    steps = steps_of(setting)
    return setting if factor == 1 or not steps else _with_steps(setting, max(1, steps // factor))


def _with_steps(setting: A, steps: int) -> A:
    """Give a setting so many steps; none, or to one that has none, changes nothing."""
    if steps == 0 or not hasattr(setting, "steps"):
        return setting
    return replace(setting, steps=steps)  # type: ignore[type-var]
