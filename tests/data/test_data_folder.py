"""A user's own images by class folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from published_files import pixels

from gradveil import data
from gradveil.errors import DataError


def save(path: Path, *, width: int = 6, height: int = 6, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(height, width, 3, seed=seed)).save(path)


def zoo(root: Path, count: int = 5) -> Path:
    for label, name in enumerate(("cat", "dog", "emu")):
        for k in range(count):
            save(root / name / f"{k}.png", seed=100 * label + k)
    return root


def content(split: data.Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def test_divides_each_class_without_losing_or_repeating_an_image(tmp_path: Path) -> None:
    loaded = data.load(f"folder:{zoo(tmp_path)}")
    assert loaded.classes == ("cat", "dog", "emu")
    assert loaded.name == f"folder:{tmp_path.name}"
    assert loaded.input_shape == (3, 6, 6)
    assert data.class_counts(loaded.train, 3).tolist() == [4, 4, 4]
    assert data.class_counts(loaded.test, 3).tolist() == [1, 1, 1]
    assert len(content(loaded.train) | content(loaded.test)) == 15


def test_pixels_and_labels_belong_together(tmp_path: Path) -> None:
    loaded = data.load(f"folder:{zoo(tmp_path)}")
    known = {pixels(6, 6, 3, seed=100 * k + i).transpose(2, 0, 1).tobytes(): k for k in range(3) for i in range(5)}
    for split in (loaded.train, loaded.test):
        assert [known[image.numpy().tobytes()] for image in split.images] == split.labels.tolist()


@pytest.mark.parametrize("divided", [False, True])
def test_a_list_marks_sensitive_images(tmp_path: Path, divided: bool) -> None:
    for part in ("train", "test") if divided else (".",):
        zoo(tmp_path / part, 3)
    above = "train/" if divided else ""
    (tmp_path / "sensitive.txt").write_text(f"{above}cat/1.png\n\n  {above}emu/2.png\n")
    loaded = data.load(f"folder:{tmp_path}")
    found = [
        image.numpy().tobytes()
        for split in (loaded.train, loaded.test)
        if split.sensitive is not None
        for image in split.images[split.sensitive]
    ]
    wanted = [pixels(6, 6, 3, seed=seed).transpose(2, 0, 1).tobytes() for seed in (1, 202)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("name", ["cat/9.png", "cat", "../cat/1.png", "sensitive.txt"])
def test_a_list_that_names_no_image_is_refused(tmp_path: Path, name: str) -> None:
    (zoo(tmp_path) / "sensitive.txt").write_text(f"cat/1.png\n{name}\n")
    with pytest.raises(DataError, match=f"names {name}, which is no image here; write paths below"):
        data.load(f"folder:{tmp_path}")


def test_without_a_list_no_image_is_marked(tmp_path: Path) -> None:
    assert data.load(f"folder:{zoo(tmp_path)}").train.sensitive is None


def test_two_readings_agree_and_classes_are_mixed(tmp_path: Path) -> None:
    first, second = (data.load(f"folder:{zoo(tmp_path)}") for _ in range(2))
    assert torch.equal(first.train.images, second.train.images)
    assert first.train.labels[:4].unique().numel() > 1
    assert first.mean == pytest.approx(first.train.inputs().mean((0, 2, 3)).tolist())


def test_honours_train_and_test_folders(tmp_path: Path) -> None:
    zoo(tmp_path / "train", 3)
    save(tmp_path / "test/dog/x.png", seed=7)
    loaded = data.load(f"folder:{tmp_path}")
    assert len(loaded.train) == 9
    assert loaded.test.labels.tolist() == [1]
    save(tmp_path / "test/yak/x.png", seed=8)
    with pytest.raises(DataError, match="class yak"):
        data.load(f"folder:{tmp_path}")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        save(tmp_path / name / "1.png")
        save(tmp_path / name / "2.png", seed=1)
    assert data.load(f"folder:{tmp_path}").classes == ("bus", "train")


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".bmp", ".webp", ".png"])
def test_reads_the_common_formats_and_passes_over_other_files(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        for k in range(2):
            save(tmp_path / name / f"nested/{k}{suffix}", seed=k)
        (tmp_path / name / "notes.txt").write_text("not an image")
        save(tmp_path / name / ".thumbnails/1.png", width=2)
    (tmp_path / ".hidden").mkdir()
    loaded = data.load(f"folder:{tmp_path}")
    assert len(loaded.train) + len(loaded.test) == 4


def test_size_cuts_the_centre_of_the_shorter_side(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for k, (width, height) in enumerate([(20, 10), (10, 16)]):
            save(tmp_path / name / f"{k}.png", width=width, height=height)
    striped = np.zeros((8, 16, 3), dtype=np.uint8)
    striped[:, 4:12] = 200
    Image.fromarray(striped).save(tmp_path / "a" / "striped.png")
    loaded = data.load(f"folder:{tmp_path},size=8,test_fraction=0.34")
    assert loaded.input_shape == (3, 8, 8)
    assert any(bool((image == 200).all()) for split in (loaded.train, loaded.test) for image in split.images)


def test_grey_reads_one_channel_of_any_picture(tmp_path: Path) -> None:
    zoo(tmp_path, 2)
    Image.fromarray(pixels(6, 6, 4)).save(tmp_path / "cat" / "transparent.png")
    Image.fromarray(pixels(6, 6)).convert("P").save(tmp_path / "dog" / "palette.png")
    Image.fromarray(pixels(6, 6)).save(tmp_path / "emu" / "grey.png")
    assert data.load(f"folder:{tmp_path},grey=yes").input_shape == (1, 6, 6)
    assert data.load(f"folder:{tmp_path}").input_shape == (3, 6, 6)


def test_turns_photographs_as_the_camera_says(tmp_path: Path) -> None:
    zoo(tmp_path, 2)
    picture = Image.fromarray(pixels(6, 6, 3, seed=50))
    exif = Image.Exif()
    exif[0x0112] = 3
    picture.save(tmp_path / "cat" / "turned.png", exif=exif)
    loaded = data.load(f"folder:{tmp_path}")
    turned = pixels(6, 6, 3, seed=50)[::-1, ::-1].transpose(2, 0, 1).tobytes()
    assert turned in content(loaded.train) | content(loaded.test)


def test_mixed_sizes_name_two_images_and_the_remedy(tmp_path: Path) -> None:
    save(zoo(tmp_path) / "dog" / "wide.png", width=9)
    with pytest.raises(DataError, match=r"0\.png is 6x6 and .*wide\.png is 9x6; give a size"):
        data.load(f"folder:{tmp_path}")


def test_train_and_test_of_two_sizes_are_refused(tmp_path: Path) -> None:
    zoo(tmp_path / "train")
    save(tmp_path / "test/cat/wide.png", width=9)
    with pytest.raises(DataError, match="train is 6x6 and test 9x6"):
        data.load(f"folder:{tmp_path}")


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    broken = zoo(tmp_path) / "dog" / "1.png"
    for damaged in (b"", b"GIF89a", broken.read_bytes()[:60], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        broken.write_bytes(damaged)
        with pytest.raises(DataError, match=r"dog/1\.png cannot be read as an image .*; replace or remove it"):
            data.load(f"folder:{tmp_path}")


def test_sixteen_bit_images_are_refused_rather_than_washed_out(tmp_path: Path) -> None:
    deep = zoo(tmp_path) / "dog" / "1.png"
    Image.fromarray(np.full((6, 6), 40000, dtype=np.uint16)).save(deep)
    with pytest.raises(DataError, match=r"more than 8 bits per channel"):
        data.load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], "holds no class folders"),
        (["lonely.png"], "holds no class folders"),
        (["cat/"], "cat holds no images"),
        (["cat/1.png", "dog/"], "dog holds no images"),
        (["cat/1.png", "cat/2.png"], "at least two classes, got only cat"),
        (["cat/1.png", "dog/1.png"], "one image per class"),
    ],
)
def test_folders_that_are_no_data_set_are_explained(make: list[str], message: str, tmp_path: Path) -> None:
    for name in make:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            save(tmp_path / name)
    with pytest.raises(DataError, match=message):
        data.load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("folder", "write folder:PATH"),
        ("folder:nowhere", "nowhere is not a folder"),
        ("folder:x,size=0", "size must be at least 1"),
        ("folder:x,test_fraction=1", "test_fraction must be above 0"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.load(spec)


def test_describes_itself_so_that_it_can_be_built_again() -> None:
    source = data.sources.build("folder:my/zoo,size=32,grey=yes")
    assert data.sources.describe(source) == "folder:path=my/zoo,size=32,grey=True"
    assert data.sources.build(data.sources.describe(source)) == source
