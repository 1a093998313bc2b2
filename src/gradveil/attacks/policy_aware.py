"""Policy-aware attack: gradient matching through a known transformation policy."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from typing_extensions import override

from gradveil.attacks._base import Attack
from gradveil.attacks._labels import LabelMethod, with_labels
from gradveil.attacks._matching import Plan
from gradveil.attacks._policy_lens import Fill, known_policy, shift_lens
from gradveil.attacks._policy_search import Screening, reconstruction, search, search_variants
from gradveil.attacks._priors import ImageSpace, Start
from gradveil.attacks._restarts import keep_best
from gradveil.engine import Runtime
from gradveil.errors import SpecError
from gradveil.streams import Streams
from gradveil.types import Card, Knowledge, Observation, Paper, Reconstruction


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAware(Attack):
    """Undo a known transformation policy while inverting gradients.

    `search=shift` is the published attack: the model sees the image under a translation that is learned with it, each
    image its own. `search=variants` goes beyond it: the model sees the image through the operations of the policy
    themselves, every policy of a hybrid and every combination of signs being tried side by side, after a learned
    shift of up to four pixels where the client crops. The guess of the private image is the one before all this, that
    of what the model saw the one after it.

    Args:
        search: `shift` or `variants`.
        steps: iterations of signed Adam; the published one returns the last iterate, this one its best.
        lr: step size of image and shift; multiplied by 0.1 at 3/8, 5/8 and 7/8 of the steps if `decay` says so.
        tv: weight of the total variation of the image before the shift.
        signed: use the sign of the image's gradient alone; the shift's is used as it is.
        boxed: keep pixels between black and white.
        decay: of the step size.
        start: of the image, `normal`, `uniform`, `zeros` or `pattern`; the shift of the first restart
            starts at 0.
        restarts: starts tried side by side, of each variant; those after the first start from another shift too. The
            one of the smallest objective is kept.
        labels: how unknown labels are read.
        limits: largest shift across and down in halves of width and height; by default those published for `3-1-7`,
            `43-18-18` and their hybrid, and what the policy can do for others.
        fill: what a learned shift moves in while searching: the `mean` colour as published, or `black` as at a client.
        shift_rate: step size of the shift over that of the image.
        screen: steps after which only the best variants of a victim go on; 0 lets all go on to the end.
        kept: how many do.
        crop: look for the place of the client's crop too, with `search=variants`.
    """

    paper: ClassVar[Paper] = Paper(
        title="[Re] Privacy-preserving collaborative learning with automatic transformation search",
        authors="Taboada Warmerdam, Loerakker, Meijer, Nissen",
        year=2022,
        url="https://openreview.net/forum?id=S9Iepnz7hRY",
    )
    requires: ClassVar[Knowledge] = Knowledge.DEFENSES
    batches: ClassVar[str] = "any; search=variants 1"
    card: ClassVar[Card] = Card(
        fails="Where operations leave nothing to recover: pixels that were moved out of the frame are filled by total "
        "variation alone, and neither a mirror nor, without clipped pixels, a change of contrast shows in a gradient. "
        "A learned shift starts at 0 and may stop short of a large translation.",
        costs="Two backward passes per step and image for `shift`; `variants` adds `screen` steps for every "
        "combination of policy and signs, 8 for 3-1-7 and 16 for its published hybrid.",
        suggested="`search=variants` with `tv=1e-2` against trained networks; `search=shift,fill=black` where a batch "
        "holds several images.",
        interacts="Everything that weakens gradient matching: noise, pruning that is not known of, large batches. "
        "A client that draws anew for every step of local training is seen through one variant only.",
    )

    search: Literal["shift", "variants"] = "shift"
    steps: int = 4800
    lr: float = 0.1
    tv: float = 1e-4
    signed: bool = True
    boxed: bool = True
    decay: bool = True
    start: Start = "normal"
    restarts: int = 1
    labels: LabelMethod = "idlg"
    limits: tuple[float, ...] | None = None
    fill: Fill = "mean"
    shift_rate: float = 1.0
    screen: int = 600
    kept: int = 1
    crop: bool = True

    def __post_init__(self) -> None:
        self._plan()
        for name, least in {"screen": 0, "kept": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.shift_rate <= 0:
            raise ValueError(f"shift_rate must be above 0, got {self.shift_rate}")
        if self.limits is not None and (len(self.limits) != 2 or min(self.limits) < 0):
            raise ValueError(f"limits must be two numbers of at least 0, such as 1.1+0.2, got {self.limits}")

    @override
    def run(self, observation: Observation, *, streams: Streams, runtime: Runtime) -> Reconstruction:
        policy, plan, streams = known_policy(observation), self._plan(), streams.repeat(self.restarts)
        seen = with_labels(observation, self.labels).repeat(self.restarts)
        images = ImageSpace.of(seen).start(self.start, streams)
        if self.search == "variants":
            if images.shape[1] != 1:
                raise SpecError(
                    f"policy-aware tries the variants of one image, but each victim has {images.shape[1]}; "
                    "use search=shift or a batch size of 1"
                )
            return search_variants(
                seen,
                policy,
                plan,
                images=images,
                screening=Screening(steps=self.screen, kept=self.kept, crop=self.crop),
                streams=streams,
                runtime=runtime,
                rate=self.shift_rate,
            )
        limits = None if self.limits is None else (self.limits[0], self.limits[1])
        lens = shift_lens(seen, policy, fill=self.fill, limits=limits)
        shifts = lens.starts(streams, self.restarts)
        found = search(seen, lens, plan, images=images, shifts=shifts, runtime=runtime, rate=self.shift_rate)
        return keep_best(reconstruction(found, seen, lens), self.restarts)

    def _plan(self) -> Plan:
        return Plan(
            lr=self.lr,
            steps=self.steps,
            decay=self.decay,
            signed=self.signed,
            boxed=self.boxed,
            tv=self.tv,
            start=self.start,
            restarts=self.restarts,
        )
