import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.models import generators
from gradveil.obscuring import load_extractor

TINY = "--settings epochs=1,batch_size=256 --device cpu --quiet"


def gradveil_(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_generator_is_trained_and_kept(inside: Path) -> None:
    line = "train generator g.safetensors --settings epochs=1,width=8,latent_size=4 --device cpu --json"
    result = gradveil_(line)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["psnr"] > 0
    assert generators.load(inside / "g.safetensors").latent_size == 4
    assert not (inside / "g.unfinished").exists()


def test_an_extractor_is_trained_and_named_by_a_study(inside: Path) -> None:
    made = gradveil_(f"train extractor e.safetensors --dataset digits --model lenet {TINY}")
    assert made.exit_code == 0, made.output
    assert load_extractor(inside / "e.safetensors").channels == 1
    line = f"obscure weights study --c 5 --c 20 --model mlp:hidden=8 --count 32 --precision float32 {TINY} --json"
    result = gradveil_(f"{line} --defense loda:extractor=e.safetensors,steps=1")
    assert result.exit_code == 0, result.output
    rows = json.loads((inside / "study/study.json").read_text())["rows"]
    assert [row["c"] for row in rows] == [None, 5.0, 20.0]
    assert json.loads(result.stdout)["defense"] == "loda:steps=1,extractor=e.safetensors"


def test_several_architectures_are_studied_in_one_command(inside: Path) -> None:
    line = f"obscure models study --model mlp:hidden=8 --model lenet --count 32 --precision float32 {TINY}"
    result = gradveil_(f"{line} --defense loda:steps=1")
    assert result.exit_code == 0, result.output
    rows = json.loads((inside / "study/study.json").read_text())["rows"]
    assert [row["architecture"] for row in rows] == ["mlp:hidden=8", "mlp:hidden=8", "lenet", "lenet"]
    assert "accuracy" in result.stdout


def test_a_study_keeps_the_rows_that_it_had_and_refuses_another_training(inside: Path) -> None:
    line = (
        "--count 32 --precision float32 --defense loda:steps=1 --device cpu --quiet --settings batch_size=256,epochs="
    )
    for began in ("weights study --c 5 --model mlp:hidden=8", "weights study --c 7 --model mlp:hidden=8"):
        assert gradveil_(f"obscure {began} {line}1").exit_code == 0
    result = gradveil_(f"obscure models study --model lenet --model lenet {line}1")
    assert result.exit_code == 0, result.output
    before = (inside / "study/study.json").read_bytes()
    rows = [(row["architecture"], row["c"]) for row in json.loads(before)["rows"]]
    assert rows == [("mlp:hidden=8", None), ("mlp:hidden=8", 5), ("mlp:hidden=8", 7), ("lenet", None), ("lenet", 20)]
    refused = gradveil_(f"obscure models study --model lenet {line}2")
    assert (refused.exit_code, "another training" in " ".join(refused.stderr.split())) == (2, True)
    assert (inside / "study/study.json").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weights study --model lenet --c 5 --c -1", "weights c must be finite and at least 0, got 5.0, -1.0"),
        ("weights study --model lenet --c nan", "got nan; correct --c"),
        ("models study --model lenet --model lenet20", "no model called 'lenet20'"),
    ],
)
def test_a_study_trains_nothing_before_all_of_it_can_be_trained(inside: Path, line: str, message: str) -> None:
    refused = gradveil_(f"obscure {line} --count 32 --defense loda:steps=1 {TINY}")
    assert (refused.exit_code, message in " ".join(refused.output.split())) == (2, True)
    assert not any(inside.iterdir())


def test_obscured_images_come_with_a_sheet(inside: Path) -> None:
    result = gradveil_("obscure images out --count 9 --defense loda:steps=1 --public digits --device cpu --quiet")
    assert result.exit_code == 0, result.output
    assert (inside / "out/sheet.png").read_bytes().startswith(b"\x89PNG")
    assert (inside / "out/obscured.safetensors").exists()
    made = json.loads((inside / "out/obscured.json").read_text())
    assert (made["images"], made["taken_over"], made["defense"]) == (9, 0, "loda:steps=1")
    assert set(made["run"]["seconds"]) == {"obscuring"}


def test_a_network_is_still_trained_without_a_word_for_it(inside: Path) -> None:
    for line in ("train a.safetensors", "train network b.safetensors"):
        assert gradveil_(f"{line} --model mlp:hidden=4 --settings epochs=1 --device cpu").exit_code == 0
    assert (inside / "a.safetensors").exists()
    assert (inside / "b.safetensors").exists()


def test_decoding_is_written_down_with_a_sheet(inside: Path) -> None:
    line = "decode out --defense mixup:k=2 --decoder decode-oracle:flipped=no --rounds 4 --images 6 --groups 2"
    result = gradveil_(f"{line} --knowledge encoding --device cpu --quiet")
    assert result.exit_code == 0, result.output
    made = json.loads((inside / "out/decoding.json").read_text())
    assert "upper bound" in made["oracle"]
    assert "upper bound" in result.stdout
    assert made["attack"] == ""
    assert made["spec"]["decoding"] == {"decoder": "decode-oracle:flipped=no", "rounds": 4}
    assert made["spec"]["audit"]["defenses"] == ["mixup:k=2"]
    private = made["scores"]["psnr"]["private"]
    assert [len(row) for row in private] == [6, 6]
    assert min(min(row) for row in private) > 40
    assert len(made["scores"]["psnr"]["protected"][0]) == 24
    assert made["identification"]["correlation"]["ranks"] == [[0.0] * 6] * 2
    assert (inside / "out/sheet.png").read_bytes().startswith(b"\x89PNG")


def test_decoding_takes_encodings_from_gradients_and_keeps_no_picture_if_asked(inside: Path) -> None:
    line = "decode out --defense mixup:k=2 --decoder decode-oracle:flipped=no --rounds 1 --images 3 --redact"
    result = gradveil_(f"{line} --attack inverting-gradients:steps=2 --knowledge encoding --device cpu --json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["attack"] == "inverting-gradients:steps=2"
    assert set(made["run"]["seconds"]) == {"client", "attack", "decode", "judge"}
    assert not list(inside.rglob("*.png"))


def test_images_obscured_otherwise_are_not_written_over(inside: Path) -> None:
    line = "obscure images out --count 4 --precision float32 --device cpu --quiet --defense loda:steps="
    assert gradveil_(f"{line}1").exit_code == 0
    before = (inside / "out" / "obscured.safetensors").read_bytes()
    refused = gradveil_(f"{line}2")
    assert (refused.exit_code, "another defense" in refused.stderr.replace("\n", " ")) == (2, True)
    assert (inside / "out" / "obscured.safetensors").read_bytes() == before
    assert gradveil_(f"{line}1").exit_code == 0


def test_a_decoder_of_mixtures_fits_the_defense_or_is_refused(inside: Path) -> None:
    quick = "--images 3 --rounds 4 --device cpu --quiet --knowledge encoding --redact"
    assert gradveil_(f"decode out --defense mixup:k=2 --decoder decode-oracle {quick}").exit_code == 0
    assert '"decode-oracle:flipped=no"' in (inside / "out" / "decoding.json").read_text()
    for decoder, wanted in (
        ("decode-oracle:flipped=yes", "flipped=no"),
        ("decode-mixing:images=4,k=2,flipped=no", "images=3"),
        ("decode-mixing:images=3,k=3,flipped=no", "k=2"),
        ("decode-mixing:images=3,k=2,flipped=no,from_pool=1", "from_pool=0"),
    ):
        refused = gradveil_(f"decode new --defense mixup:k=2 --decoder {decoder} {quick}")
        assert (refused.exit_code, wanted in refused.stderr) == (2, True)


def test_obscured_images_are_decoded_with_the_extractor_of_a_known_defense(inside: Path) -> None:
    line = "decode out --defense loda:steps=1 --decoder decode-loda:steps=1 --images 2 --rounds 1 --device cpu --quiet"
    assert gradveil_(line).exit_code == 0
    other = gradveil_(f"{line} --knowledge auxiliary")
    assert (other.exit_code, "another spec" in other.stderr.replace("\n", " ")) == (2, True)
    refused = gradveil_(f"{line.replace('out', 'other')} --knowledge auxiliary")
    assert refused.exit_code == 1
    assert "needs the extractor of the defense" in refused.stderr.replace("\n", " ")


def test_settings_of_the_adaptive_attack_are_searched_on_public_images(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradveil._decoder_search.WEIGHTS", (0.0, 1.0))
    monkeypatch.setattr("gradveil._decoder_search.STEPS", (1, 2))
    line = "decode out --defense loda:steps=2,c=7 --decoder decode-loda:lr=0.1 --images 2 --rounds 1 --device cpu"
    result = gradveil_(f"{line} --search --quiet --redact")
    assert result.exit_code == 0, result.output
    made = json.loads((inside / "out/decoding.json").read_text())
    tried = [f"decode-loda:weight={w},steps={s},lr=0.1" for w in (0, 1, 7) for s in (1, 2)]
    tried += [f"decode-loda:weight={w},steps=2,lr=0.02,optimizer=adam" for w in (0, 1, 7)]
    assert [trial["decoder"].replace("loda:steps", "loda:weight=1,steps") for trial in made["search"]] == tried
    best = min(made["search"], key=lambda trial: (trial["rank"], -trial["psnr"]))
    assert made["chosen"] == best["decoder"]
    assert made["chosen"] in result.stdout
    assert made["spec"]["decoding"] == {"decoder": "decode-loda:lr=0.1", "rounds": 1, "search": True}
    refused = gradveil_(f"{line.replace('out', 'new')} --search --quiet --knowledge auxiliary")
    assert (refused.exit_code, "grant defenses" in " ".join(refused.stderr.split())) == (1, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train generator . --settings epochs=1", "is a folder; name the file to write"),
        ("train generator g.safetensors --settings epochs=0", "epochs must be at least 1"),
        ("train extractor e.safetensors --dataset digits --settings epoch=1", "did you mean epochs"),
        ("decode out --decoder decode-mixin", "did you mean decode-mixing"),
        ("decode out --search", "only decode-loda is searched for, got 'decode-mixing"),
        ("decode out --rounds 0", "rounds must be at least 1"),
        (
            "decode out --defense loda:steps=1",
            "decode-mixing decodes mixtures, but neither mixup nor instahide is among",
        ),
        ("decode out --defense loda:steps=1 --decoder decode-oracle", "decode-loda undoes loda"),
        ("decode out --defense none", "neither mixup nor instahide is among the defenses"),
        ("decode out --decoder decode-loda", "loda, which is not among the defenses"),
        ("obscure images out --defense mixup", "images are obscured by loda, got 'mixup'"),
        ("obscure weights out --defense loda --settings lr=0", "lr must be above 0"),
    ],
)
def test_wrong_use_is_one_sentence(inside: Path, line: str, message: str) -> None:
    result = gradveil_(line)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not any(inside.iterdir())
