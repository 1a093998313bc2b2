"""Decoding the encodings of a data defense as one run: from a spec to a record in a folder."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from gradveil._decoder_search import DecoderTrial, loda_settings, search_decoder
from gradveil._networks import prepare
from gradveil.attacks import Decoder, decoders
from gradveil.attacks._decoders.decode_loda import DecodeLoda
from gradveil.attacks._decoders.decode_mixing import DecodeMixing
from gradveil.attacks._decoders.decode_oracle import DecodeOracle
from gradveil.auditing import Judging
from gradveil.client import Client
from gradveil.decoding import Decoded, audit_decoding
from gradveil.defenses import Defense, InstaHide, Loda, Mixup
from gradveil.engine import Runtime
from gradveil.errors import KnowledgeError, SpecError
from gradveil.grid import Settings, draw, load_material
from gradveil.obscuring import mark_of
from gradveil.record import Identification, Run, Scores, about_this_run
from gradveil.spec import AuditSpec, Cell, build, build_defenses, build_metrics, parse_knowledge
from gradveil.storage import TensorFolder, content_hash, refuse_another, write_atomically
from gradveil.types import Auxiliary, Batch, Knowledge

FILE = "decoding.json"
_ORACLE = "an upper bound: this decoder was told what no adversary knows"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSpec:
    """What to decode.

    Args:
        audit: one model, state and defense; its victims are groups that are decoded together, its batch size the
            private images of a group, its attack what recovers encodings from gradients.
        decoder: such as `decode-mixing:images=20,k=4`.
        rounds: how often every group is encoded.
        recovered: let the attack recover the encodings from gradients; else the decoder is given the true ones.
        search: choose weight and steps of `decode-loda` on public images that the adversary obscures itself.
    """

    audit: AuditSpec
    decoder: str = "decode-mixing"
    rounds: int = 1
    recovered: bool = False
    search: bool = False

    def __post_init__(self) -> None:
        self.build_decoder()
        for name in ("models", "states", "defenses", "attacks"):
            if len(getattr(self.audit, name)) > 1:
                raise SpecError(f"one decoding takes one of {name}, got {len(getattr(self.audit, name))}; run it twice")
        if self.rounds < 1:
            raise SpecError(f"rounds must be at least 1, got {self.rounds}")
        if self.search and not isinstance(self.build_decoder(), DecodeLoda):
            raise SpecError(f"only decode-loda is searched for, got '{self.decoder}'; leave out the search")
        _check_fit(self.build_decoder(), self.cell().build_defenses(), images=self.audit.batch_size)

    def build_decoder(self) -> Decoder:
        """Make the decoder."""
        return build(decoders, self.decoder)

    def cell(self) -> Cell:
        """Return the names of what is encoded and attacked."""
        audit = self.audit
        return Cell(model=audit.models[0], state=audit.states[0], defenses=audit.defenses[0], attack=audit.attacks[0])


def fitting_decoder(decoder: str, defenses: str, *, images: int) -> str:
    """Fill in what a decoder of mixtures has to know of a defense, where its spec string says nothing at all.

    Example:
        >>> fitting_decoder("decode-mixing", "mixup:k=3", images=8)
        'decode-mixing:images=8,k=3,flipped=no'
    """
    mixing = next((one for one in build_defenses(defenses) if isinstance(one, Mixup | InstaHide)), None)
    if mixing is None or decoder not in {"decode-mixing", "decode-oracle"}:
        return decoder
    flipped = f"flipped={'yes' if isinstance(mixing, InstaHide) else 'no'}"
    return (
        f"{decoder}:{flipped}"
        if decoder == "decode-oracle"
        else f"{decoder}:images={images},k={mixing.k - mixing.from_pool},{flipped}{_pooled(mixing)}"
    )


def _pooled(mixing: Mixup | InstaHide) -> str:
    return f",from_pool={mixing.from_pool}" if mixing.from_pool else ""


def _check_fit(decoder: Decoder, defenses: Sequence[Defense], *, images: int) -> None:
    """Refuse a decoder of what no defense makes, or of other mixtures than the defense makes."""
    mixing = next((one for one in defenses if isinstance(one, Mixup | InstaHide)), None)
    if isinstance(decoder, DecodeLoda):
        if not any(isinstance(one, Loda) for one in defenses):
            raise SpecError("decode-loda undoes loda, which is not among the defenses; decode-mixing decodes mixtures")
        return
    if not isinstance(decoder, DecodeMixing | DecodeOracle):
        return
    if mixing is None:
        raise SpecError(
            f"{decoders.name_of(decoder)} decodes mixtures, but neither mixup nor instahide is among the defenses; "
            "decode-loda undoes loda"
        )
    wanted: dict[str, object] = {"flipped": "yes" if isinstance(mixing, InstaHide) else "no"}
    if isinstance(decoder, DecodeMixing):
        wanted |= {"images": images, "k": mixing.k - mixing.from_pool, "from_pool": mixing.from_pool}
    for name, value in wanted.items():
        if getattr(decoder, name) != value:
            raise SpecError(
                f"the defense makes mixtures with {name}={value}, but the decoder has {name}={getattr(decoder, name)}; "
                f"write {name}={value}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRecord:
    """The saved result of one decoding.

    Args:
        spec: everything that is needed to run it again.
        oracle: what an upper bound is not to be mistaken for; empty for what an adversary can do.
        attack: that recovered the encodings; empty if the decoder was given the true ones.
        scores: by metric; `private` of the images, `protected` of the encodings that the decoder was given.
        identification: by view.
        objective: (V,) the decoder's own, lower is better.
        labels: (V, P) class of each private image.
        run: date, timings, device, versions.
        extractor: hash of the weights of LODA's extractor; empty without one.
        search: settings of the decoder that were tried on public images, and how they did.
        chosen: the setting that did best; empty without a search.
        format: of this file.
    """

    spec: dict[str, Any]
    oracle: str
    attack: str
    scores: dict[str, Scores]
    identification: dict[str, Identification]
    objective: list[float]
    labels: list[list[int]]
    run: Run
    extractor: str = ""
    search: list[dict[str, Any]] = field(default_factory=list)
    chosen: str = ""
    format: int = field(default=1)


def run_decoding(spec: DecodingSpec, folder: Path, *, settings: Settings | None = None) -> Decoded:
    """Encode, share, recover and decode as a spec says, and write `decoding.json` into a folder.

    An interrupted run of the same spec goes on where it was; another spec in its folder begins anew. A folder with the
    record of another spec is refused.

    Args:
        spec: what to decode.
        folder: of the record; a network that has to be trained is kept there too.
        settings: device, data folder, progress.
    """
    settings, audit, cell = settings or Settings(), spec.audit, spec.cell()
    about = {"spec": _spec_of(spec), "attack": _attack_of(spec), "extractor": mark_of(cell.build_defenses())}
    refuse_another(folder / FILE, about)
    unfinished = TensorFolder(folder / "unfinished", content_hash(json.dumps(about)))
    place = settings.place()
    material = load_material(audit, settings)
    prepared = prepare(audit, cell, material.dataset, folder=folder, settings=settings)
    client = Client(
        model=prepared.model,
        loss=F.cross_entropy,
        defenses=cell.build_defenses(),
        local=audit.local,
        mode=audit.mode,
        pool=material.pool,
    )
    batch, knowledge = draw(audit, material.dataset).to(place), parse_knowledge(audit.knowledge)
    auxiliary = _with_extractor(material.public, client, batch, knowledge)
    runtime = Runtime(
        precision=audit.precision,
        chunk=settings.chunk,
        progress=settings.progress,
        store=unfinished,
        save_every=settings.save_every,
    )
    decoder, trials = _searched(spec, client, auxiliary, runtime)
    result = audit_decoding(
        batch,
        client,
        decoder=decoder,
        attack=cell.build_attack() if spec.recovered else None,
        rounds=spec.rounds,
        knowledge=knowledge,
        auxiliary=auxiliary,
        judging=Judging(metrics=build_metrics(audit), reference=material.reference, decoys=audit.decoys),
        seed=audit.seed,
        runtime=runtime,
    )
    made = to_record(result, spec, batch)
    if trials:
        made = replace(made, search=[asdict(trial) for trial in trials], chosen=decoders.describe(decoder))
    write_atomically(folder / FILE, json.dumps(asdict(made), indent=1).encode())
    unfinished.clear()
    return result


def _searched(
    spec: DecodingSpec, client: Client, auxiliary: Auxiliary | None, runtime: Runtime
) -> tuple[Decoder, tuple[DecoderTrial, ...]]:
    """Choose the settings of the decoder as its adversary would, if the spec asks for it."""
    decoder, known = spec.build_decoder(), parse_knowledge(spec.audit.knowledge)
    if not spec.search or not isinstance(decoder, DecodeLoda):
        return decoder, ()
    obscuring = [defense for defense in client.data_defenses if isinstance(defense, Loda)]
    if not obscuring or Knowledge.DEFENSES not in known:
        raise KnowledgeError("the search obscures public images as the client's loda does; name it, and grant defenses")
    settings = loda_settings(decoder, c=obscuring[-1].descent.c)
    return search_decoder(settings, client, auxiliary or Auxiliary(), seed=spec.audit.seed, runtime=runtime)


def _spec_of(spec: DecodingSpec) -> dict[str, Any]:
    searched = {"search": True} if spec.search else {}
    return {**spec.audit.to_dict(), "decoding": {"decoder": spec.decoder, "rounds": spec.rounds, **searched}}


def _attack_of(spec: DecodingSpec) -> str:
    return spec.cell().attack if spec.recovered else ""


def to_record(result: Decoded, spec: DecodingSpec, batch: Batch) -> DecodingRecord:
    """Write a decoding down."""
    return DecodingRecord(
        spec=_spec_of(spec),
        oracle=_ORACLE if result.oracle else "",
        attack=_attack_of(spec),
        scores=dict(result.scores),
        identification=dict(result.identification),
        objective=result.decoding.objective.double().tolist(),
        labels=batch.labels.tolist(),
        run=about_this_run(seconds=result.seconds, chunk=0, device=batch.inputs.device),
        extractor=mark_of(spec.cell().build_defenses()),
    )


def _with_extractor(public: Auxiliary | None, client: Client, batch: Batch, knowledge: Knowledge) -> Auxiliary | None:
    """Give who knows an obscuring defense the extractor that it uses, which is public."""
    found = [defense for defense in client.data_defenses if isinstance(defense, Loda)]
    if public is None or public.extractor is not None or not found or Knowledge.DEFENSES not in knowledge:
        return public
    return replace(public, extractor=found[-1].features(batch.inputs[0]))
