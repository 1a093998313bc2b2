from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from gradveil._informed import build_informed, informed
from gradveil.attacks import InvertingGradients
from gradveil.cli.audit import merge
from gradveil.defenses import Adversary, GaussianNoise, Mixup, Pruning, UpdateDefense, defenses
from gradveil.errors import GradVeilError, SpecError, UnknownNameError
from gradveil.models.training import PRESETS, Training
from gradveil.spec import AuditSpec, Cell, build_training, parse_knowledge, read_spec, spec_from
from gradveil.streams import Streams
from gradveil.types import Gradients, Knowledge, LocalTraining

EVERYTHING = AuditSpec(
    dataset='folder:/pictures/of "cats" and 🐈,size=16',
    split="train",
    victims=5,
    batch_size=3,
    start=-1,
    models=("lenet:activation=tanh", "mlp"),
    states=("untrained", "checkpoint:/tmp/naïve [x].safetensors"),
    defenses=("none", "pruning:fraction=0.5 + gaussian-noise:std=1e-3"),
    attacks=("dlg:steps=3", "inverting-gradients:tv=1e-6"),
    metrics=("mse", "psnr"),
    knowledge=("auxiliary",),
    adaptive=False,
    adversaries=("bayes-optimal:steps=9",),
    tune=True,
    auxiliary="digits",
    auxiliary_images=7,
    generator="nets/g.safetensors",
    extractor="nets/e.safetensors",
    mode="train",
    seed=2**40,
    model_seed=7,
    normalize=False,
    decoys=9,
    null_victims=0,
    precision="bf16",
    deterministic=True,
    training=Training(epochs=2, lr=1e-05, schedule="cosine", seed=3),
    local=LocalTraining(steps=3, lr=1e16, local_batch_size=2, shuffled=True, shares="weights", optimizer="adam"),
)


def written(text: str, folder: Path) -> Path:
    file = folder / "audit.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("spec", [AuditSpec(), EVERYTHING], ids=["defaults", "everything"])
def test_a_written_spec_reads_back_equal(spec: AuditSpec, tmp_path: Path) -> None:
    assert read_spec(written(spec.to_toml(), tmp_path)) == spec
    assert spec_from(spec.to_dict()) == spec


def test_a_short_file_keeps_the_defaults(tmp_path: Path) -> None:
    spec = read_spec(written('[audit]\nvictims = 3\nmodels = "mlp"\nbatch-size = 2\n', tmp_path))
    assert spec == AuditSpec(victims=3, models=("mlp",), batch_size=2)
    assert read_spec(written("", tmp_path)) == AuditSpec()


def test_a_short_training_table_changes_what_it_names_alone(tmp_path: Path) -> None:
    usual = AuditSpec().training
    some = read_spec(written("[training]\nepochs = 3\nlr = 1\n", tmp_path)).training
    assert (some.epochs, some.lr) == (3, 1.0)
    assert (some.optimizer, some.weight_decay) == (usual.optimizer, usual.weight_decay)
    preset = read_spec(written('[training]\npreset = "fast"\nepochs = 3\n', tmp_path)).training
    assert preset == build_training("fast", "epochs=3")
    assert (preset.batch_size, preset.lr) == (PRESETS["fast"].batch_size, PRESETS["fast"].lr)


def test_the_grid_is_every_combination_once_models_first() -> None:
    spec = AuditSpec(models=("lenet", "mlp", "lenet"), defenses=("none", "pruning"), attacks=("dlg", "dlg:steps=2"))
    cells = [(cell.model, cell.defenses, cell.attack) for cell in spec.cells() if not cell.adaptive]
    assert cells == [(m, d, a) for m in ("lenet", "mlp") for d in ("none", "pruning") for a in ("dlg", "dlg:steps=2")]
    names = {cell.name for cell in spec.cells()}
    assert len(names) == len(spec.cells()) > len(cells)
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in names)


BAYES = "bayes-optimal:steps=7,restarts=2"


def attacked(**changes: Any) -> list[tuple[str, str, bool]]:
    spec = AuditSpec(**{"attacks": ("inverting-gradients:steps=7,restarts=2",), **changes})
    return [(cell.defenses, cell.attack.partition(":")[0], cell.adaptive) for cell in spec.cells()]


def test_beside_the_listed_attack_the_one_that_a_defense_names_is_run() -> None:
    listed, informed = "inverting-gradients", "bayes-optimal"
    assert attacked(defenses=("none", "pruning")) == [
        ("none", listed, False),
        ("pruning", listed, False),
        ("pruning", informed, True),
    ]
    assert attacked(defenses=("pruning",), adaptive=False) == [("pruning", listed, False)]


def test_defenses_that_name_the_same_adversary_meet_it_once() -> None:
    both = "pruning + gaussian-noise"
    assert attacked(defenses=(both,)) == [(both, "inverting-gradients", False), (both, "bayes-optimal", True)]


def test_an_informed_attack_that_is_listed_is_not_run_again() -> None:
    spec = AuditSpec(attacks=("dlg", BAYES), defenses=("pruning",))
    assert [(cell.attack, cell.adaptive) for cell in spec.cells()] == [("dlg", False), (BAYES, False)]
    assert [Knowledge.DEFENSES in spec.knowledge_of(cell) for cell in spec.cells()] == [False, True]


def test_an_informed_attack_has_the_budget_of_the_listed_one_unless_it_has_settings_of_its_own() -> None:
    def settings(**changes: Any) -> str:
        return AuditSpec(**{"defenses": ("pruning",), **changes}).cells()[-1].attack

    assert settings(attacks=("dlg", "inverting-gradients:steps=7,tv=1,restarts=2")) == BAYES
    assert settings(attacks=("inverting-gradients",)) == "bayes-optimal"
    given = {"attacks": ("inverting-gradients:steps=7",), "adversaries": ("bayes-optimal:prior=3",)}
    assert settings(**given) == "bayes-optimal:prior=3"


def test_settings_that_a_defense_asks_for_stand_over_those_of_a_spec() -> None:
    built = build_informed("inverting-gradients:tv=0.5", ["dlg:steps=3", "inverting-gradients:steps=9,tv=0.1"])
    assert built == InvertingGradients(steps=9, tv=0.5)


def test_a_defense_without_an_informed_attack_says_why() -> None:
    (found,) = AuditSpec().informed("mixup:k=2")
    assert (found.defense, found.attack) == ("mixup", "")
    assert found.reason == Mixup.adversary.reason


@dataclass(frozen=True)
class Named(UpdateDefense):
    """Name an adversary who needs public material."""

    adversary: ClassVar[Adversary] = Adversary(attack="generative", reason="a test")

    @override
    def apply(self, update: Gradients, *, streams: Streams) -> Gradients:
        return update


def test_an_adversary_that_needs_more_than_is_granted_is_left_out_in_words() -> None:
    poor, rich = (informed([Named()], knowledge=known)[0] for known in (Knowledge.NOTHING, Knowledge.AUXILIARY))
    assert poor.attack == ""
    assert poor.reason == "generative needs auxiliary too, which this audit does not grant"
    assert rich.attack == "generative"


def test_every_adversary_that_a_defense_names_can_be_built() -> None:
    for name in defenses.names():
        named = defenses.get(name).adversary
        assert named.reason, name
        assert not named.attack or build_informed(named.attack, [])


def test_the_standard_adversary_does_not_know_of_the_defense_and_the_informed_one_does() -> None:
    spec = AuditSpec(defenses=("pruning",), knowledge=("labels", "defenses"))
    standard, aware = spec.cells()
    assert spec.knowledge_of(standard) == Knowledge.LABELS
    assert spec.knowledge_of(aware) == Knowledge.LABELS | Knowledge.DEFENSES
    (plain,) = replace(spec, adaptive=False).cells()
    assert replace(spec, adaptive=False).knowledge_of(plain) == Knowledge.LABELS | Knowledge.DEFENSES
    assert standard.name != replace(standard, adaptive=True).name


def test_cells_that_differ_in_signs_alone_have_names_of_their_own() -> None:
    first, second = (Cell(model="mlp", state="untrained", defenses="none", attack=a) for a in ("dlg:lr=1", "dlg:lr-1"))
    assert first.name != second.name


def test_a_cell_builds_what_it_says() -> None:
    cell = Cell(
        model="lenet",
        state="untrained",
        defenses="pruning:fraction=0.5 + gaussian-noise:0.25",
        attack="inverting-gradients:steps=7,signed=no",
    )
    assert cell.build_defenses() == (Pruning(fraction=0.5), GaussianNoise(std=0.25))
    assert cell.build_attack() == InvertingGradients(steps=7, signed=False)
    assert Cell(model="lenet", state="untrained", defenses="none", attack="dlg").build_defenses() == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "digitz"}, "no data set called 'digitz'; did you mean digits?"),
        ({"models": ("lenett",)}, "no model called 'lenett'; did you mean lenet"),
        ({"auxiliary": "digitz"}, "no data set called 'digitz'; did you mean digits?"),
        ({"adversaries": ("dgl",)}, "no attack called 'dgl'; did you mean dlg"),
        ({"attacks": ("dgl",)}, "no attack called 'dgl'; did you mean dlg"),
        ({"defenses": ("prunning",)}, "no defense called 'prunning'; did you mean pruning"),
        ({"defenses": ("pruning + gausian-noise",)}, "did you mean gaussian-noise"),
        ({"metrics": ("psrn",)}, "no metric called 'psrn'; did you mean psnr"),
        ({"states": ("trained-with-defence",)}, "did you mean trained-with-defense"),
        ({"knowledge": ("lables",)}, "no knowledge called 'lables'; did you mean labels?"),
        ({"attacks": ("dlg:stepz=3",)}, "no setting of attack dlg called 'stepz'; did you mean steps"),
    ],
)
def test_an_unknown_name_brings_the_nearest(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        AuditSpec(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"victims": 0}, "victims must be at least 1, got 0"),
        ({"auxiliary_images": 0}, "auxiliary_images must be at least 1, got 0"),
        ({"auxiliary": "digits", "knowledge": ("labels",)}, "auxiliary is for an adversary who has public material"),
        ({"tune": True, "knowledge": ()}, "tune is for an adversary who has public material"),
        ({"extractor": "x", "knowledge": ()}, "extractor is for an adversary who has public material; add auxiliary"),
        ({"adversaries": ("dlg:steps=0",)}, "attack 'dlg:steps=0': steps must be at least 1"),
        (
            {"defenses": ("soteria + pruning + dp-sgd",)},
            "'soteria + pruning + dp-sgd': one step can be computed in one way only, got soteria and dp-sgd; keep one",
        ),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"decoys": 0}, "decoys must be at least 1"),
        ({"null_victims": -1}, "null_victims must be at least 0"),
        ({"start": -2}, "start must be at least -1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"model_seed": 2**63}, "model_seed must be at least 0 and below"),
        ({"models": ()}, "models must name at least one"),
        ({"attacks": ()}, "attacks must name at least one"),
        ({"metrics": ()}, "metrics must name at least one"),
        ({"split": "validation"}, "split must be one of test, train"),
        ({"mode": "fit"}, "mode must be one of eval, train"),
        ({"precision": "float64"}, "precision must be one of float32, tf32, bf16"),
        ({"attacks": ("dlg:steps=0",)}, "attack 'dlg:steps=0': steps must be at least 1, got 0"),
        ({"attacks": ("dlg:steps=many",)}, "steps must be of type int, got 'many'"),
        ({"defenses": ("pruning:fraction=2",)}, "fraction must be at least 0 and below 1, got 2"),
        ({"models": ("convnet:width=0",)}, "width must be at least 1, got 0"),
    ],
)
def test_a_spec_that_cannot_run_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        AuditSpec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("victims = 3", "no table of a spec file called 'victims'"),
        ("[audits]\nvictims = 3", "did you mean audit?"),
        ("audit = 3", "audit must be a table, got 3"),
        ("[[audit]]\nvictims = 3", "audit must be a table"),
        ("[audit]\nvictimes = 3", "no setting of [audit] called 'victimes'; did you mean victims"),
        ("[audit]\ntraining = 3", "no setting of [audit] called 'training'"),
        ('[audit]\nvictims = "3"', "[audit] victims must be a whole number, got '3'"),
        ("[audit]\nvictims = 3.5", "[audit] victims must be a whole number, got 3.5"),
        ("[audit]\nvictims = true", "[audit] victims must be a whole number, got True"),
        ("[audit]\ndeterministic = 1", "[audit] deterministic must be true or false, got 1"),
        ("[audit]\ndataset = 3", "[audit] dataset must be a text, got 3"),
        ("[audit]\nmodels = [3]", "[audit] models must be a text or a list of texts, got [3]"),
        ("[audit]\nmodels = []", "models must name at least one"),
        ("[audit]\nvictims = 0", "victims must be at least 1"),
        ('[audit]\nmode = "fit"', "[audit] mode must be one of eval, train, got 'fit'"),
        ('[local]\noptimizer = "adagrad"', "[local] optimizer must be one of sgd, adam, got 'adagrad'"),
        ('[local]\nlocal_batch_size = "all"', "[local] local_batch_size must be a whole number, got 'all'"),
        ("[local]\nlr = false", "[local] lr must be a number, got False"),
        ("[local]\nsteps = 2", "[local]: a client of 2 local steps shares a difference or weights"),
        ("[training]\nepochs = 0", "[training]: epochs must be at least 1, got 0"),
        ('[training]\nschedule = "zigzag"', "[training] schedule must be one of"),
        ('[training]\npreset = "slow"', "no training preset called 'slow'"),
        ("[training]\npreset = 3", "no training preset called '3'"),
        ("[audit\n", "is not valid TOML"),
        ("[audit]\nvictims = 1\nvictims = 2", "is not valid TOML"),
    ],
)
def test_a_file_with_a_mistake_says_where_it_is(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GradVeilError) as caught:
        read_spec(written(text, tmp_path))
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no spec file at"):
        read_spec(tmp_path / "nowhere.toml")
    with pytest.raises(SpecError, match=r"cannot be read \(Is a directory\)"):
        read_spec(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not valid TOML"):
        read_spec(tmp_path / "bytes.toml")


def test_flags_stand_over_the_file_and_the_file_over_the_defaults() -> None:
    flags = {"victims": 9, "models": ["mlp"], "dataset": None, "seed": None}
    spec = merge(EVERYTHING, flags, epochs=None)
    assert (spec.victims, spec.models) == (9, ("mlp",))
    assert (spec.dataset, spec.seed, spec.training) == (EVERYTHING.dataset, EVERYTHING.seed, EVERYTHING.training)
    assert spec.local == EVERYTHING.local
    assert merge(EVERYTHING, {}, epochs=None) == EVERYTHING
    assert merge(None, {}, epochs=None) == AuditSpec()


def test_the_epochs_flag_changes_the_epochs_alone() -> None:
    for base in (None, EVERYTHING):
        before, after = (merge(base, {}, epochs=epochs).training for epochs in (None, 77))
        assert after.epochs == 77
        assert (after.optimizer, after.lr, after.schedule) == (before.optimizer, before.lr, before.schedule)


def test_knowledge_is_the_sum_of_its_names() -> None:
    assert parse_knowledge(("labels", "local-training")) == Knowledge.LABELS | Knowledge.LOCAL_TRAINING
    assert parse_knowledge(()) == parse_knowledge(("nothing",)) == Knowledge.NOTHING


def test_training_settings_of_the_command_line_are_checked() -> None:
    assert build_training("conservative", "") == PRESETS["conservative"]
    with pytest.raises(SpecError, match="epochs must be of type int"):
        build_training("fast", "epochs=x")
    with pytest.raises(SpecError, match="epochs must be at least 1"):
        build_training("fast", "epochs=0")
