"""Strip plots and picture grids."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from synthetic_runs import make_images, make_record, psnr

from gradveil.record import Record, Scores
from gradveil.report.figures import Axis, plots
from gradveil.report.pictures import data_uri, grid


def test_dots_lie_where_the_scores_are() -> None:
    (plot, _) = plots([make_record([10.0, 20.0, 30.0, 40.0])])
    (strip,) = plot.strips
    xs = [dot.x for dot in strip.dots]
    assert np.allclose(np.diff(xs), xs[1] - xs[0])
    assert [dot.worst for dot in strip.dots] == [False, False, False, True]
    assert strip.mean == pytest.approx(np.mean(xs), abs=1e-3)
    assert all(0 < x < 100 for x in xs)


def test_cells_share_one_axis_and_failed_ones_are_left_out() -> None:
    failed = replace(make_record(), status="failed", scores={}, identification={})
    plot = plots([make_record(), failed, make_record([9.0, 10.0, 11.0, 12.0])])[0]
    grey = [[mark.x for mark in strip.marks if mark.text.startswith("grey")] for strip in plot.strips]
    assert [strip.number for strip in plot.strips] == [1, 3]
    assert grey[0] == grey[1]


def test_every_null_has_a_labelled_line_on_a_height_of_its_own() -> None:
    (strip,) = plots([make_record()])[0].strips
    assert {mark.text.rsplit(" ", 1)[0] for mark in strip.marks} == {
        "grey",
        "own mean colour",
        "other of the class",
        "random gradient",
    }
    assert len({mark.y for mark in strip.marks}) == 4
    assert "grey 12.00" in [mark.text for mark in strip.marks]


def test_no_null_line_crosses_the_label_of_another_on_its_side() -> None:
    (strip,) = plots([make_record([0.0, 9.0, 10.0, 11.0])])[0].strips
    for mark in strip.marks:
        inwards = [m for m in strip.marks if m.anchor == mark.anchor and abs(m.x - 50) < abs(mark.x - 50)]
        assert all(other.y > mark.y for other in inwards)


def test_equal_scores_are_stacked_and_not_hidden() -> None:
    (strip,) = plots([make_record([15.0] * 5, ranks=[1] * 5)])[0].strips
    assert len({(dot.x, dot.y) for dot in strip.dots}) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_left_out_of_the_plot(value: float) -> None:
    (strip,) = plots([replace(make_record(), scores={"psnr": psnr([[value], [14.0], [15.0], [16.0]])})])[0].strips
    assert len(strip.dots) == 3


def test_a_single_score_without_nulls_can_be_drawn() -> None:
    plot = plots([replace(make_record(), scores={"psnr": Scores(private=[[0.0]], protected=[])})])[0]
    assert plot.strips[0].dots[0].x == 50.0


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.02, 0.37), (5.3, 141.0), (1e-5, 3e-4)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = Axis(low, high).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(0 <= place <= 100 for place, _ in ticks)


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (2, "L")])
def test_small_pictures_are_embedded_exactly(channels: int, mode: str) -> None:
    image = make_images(1, channels=channels)["private"][0, 0]
    picture = decoded(data_uri(image))
    assert (picture.mode, picture.format, picture.size) == (mode, "PNG", (8, 8))
    if channels == 3:
        assert np.array_equal(np.asarray(picture).transpose(2, 0, 1), image)
    if channels == 1:
        assert np.array_equal(np.asarray(picture), image[0])


def test_large_pictures_are_reduced() -> None:
    assert max(decoded(data_uri(np.zeros((3, 224, 200), dtype=np.uint8))).size) == 128


def test_identified_samples_come_first_and_then_the_closest() -> None:
    found = grid(make_record([9.0, 30.0, 12.0, 20.0], ranks=[0, 4, 0, 9]), make_images())
    assert found is not None
    assert [card.name.partition(" ·")[0] for card in found.first] == ["victim 3", "victim 1", "victim 2", "victim 4"]
    assert [card.identified for card in found.first] == [True, True, False, False]
    assert found.first[0].scores == ("PSNR 12.00 dB", "SSIM 0.120", "rank 1 of 101")
    assert [picture.title for picture in found.first[0].pictures] == ["private", "model saw", "reconstruction"]


def test_sixteen_samples_are_shown_at_once_and_no_more_than_sixty_four_in_all() -> None:
    found = grid(many(100), make_images(100))
    assert found is not None
    assert (len(found.first), len(found.rest), found.left_out) == (16, 48, 36)


def test_images_of_fewer_victims_than_scores_are_shown_as_far_as_they_go() -> None:
    found = grid(make_record(), make_images(2))
    assert found is not None
    assert {card.name.partition(" ·")[0] for card in found.first} == {"victim 1", "victim 2"}


def test_a_record_without_pictures_has_no_grid() -> None:
    assert grid(make_record(), {}) is None


def many(victims: int) -> Record:
    return make_record(np.linspace(8, 20, victims).tolist(), ranks=[5] * victims)
