"""Animations, sheets and captions, read back with Pillow."""

import numpy as np
import pytest
from PIL import Image

from save_rl.errors import InputError
from save_rl.report.pictures import Bar, beside, caption, contact_sheet, enlarge, save_gif
from tests.envs.construction.test_drawing import (
    BLACK,
    BLUE,
    RED,
    SMALL,
    WHITE,
    build,
    draw,
)


def frames(count):
    """A block that climbs, with captions."""
    return [
        caption(draw(build("covering", (SMALL, k % 2, 3.0, 1.0 + k, 0.2 * k)), 240), f"step {k}")
        for k in range(count)
    ]


def read_gif(path):
    """Its frames and how long each is shown, in milliseconds."""
    pictures, durations = [], []
    with Image.open(path) as image:
        for k in range(getattr(image, "n_frames", 1)):
            image.seek(k)
            pictures.append(np.array(image.convert("RGB")))
            durations.append(image.info["duration"])
        return pictures, durations, image.info.get("loop")


def test_an_animation_comes_back_and_rests_at_its_end(tmp_path):
    saved = frames(4)
    save_gif(saved, tmp_path / "a.gif", 0.25)
    pictures, durations, loop = read_gif(tmp_path / "a.gif")
    assert len(pictures) == 4
    assert durations[:3] == [250] * 3
    assert durations[3] >= 1000
    assert loop == 0  # for ever
    for picture, frame in zip(pictures, saved, strict=True):
        assert picture.shape == frame.shape
        for colour in (WHITE, BLACK, BLUE, RED):
            np.testing.assert_array_equal((picture == colour).all(-1), (frame == colour).all(-1))
        assert np.abs(picture.astype(int) - frame).mean() < 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]
    assert (tmp_path / "a.gif").stat().st_size < 4 * 5000


def test_an_animation_of_one_frame(tmp_path):
    save_gif(frames(1), tmp_path / "a.gif")
    pictures, _, _ = read_gif(tmp_path / "a.gif")
    assert len(pictures) == 1


def test_frames_that_stay_the_same_take_as_long_as_they_should(tmp_path):
    first, second = frames(2)
    save_gif([first, second], tmp_path / "short.gif", 0.2)
    save_gif([first, first, first, second], tmp_path / "long.gif", 0.2)
    short, long = (sum(read_gif(tmp_path / f"{name}.gif")[1]) for name in ("short", "long"))
    assert long - short == 400


def test_more_colours_than_a_palette_holds_become_the_nearest(tmp_path):
    frame = np.zeros((32, 32, 3), np.uint8)
    frame[..., 0], frame[..., 1] = 8 * np.arange(32), 8 * np.arange(32)[:, None]  # 1024 colours
    frame[:, :4] = 255
    save_gif([frame], tmp_path / "a.gif")
    (picture,), _, _ = read_gif(tmp_path / "a.gif")
    assert (picture[:, :4] == 255).all()
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) <= 256


def test_a_caption_leaves_the_frame_and_adds_a_strip():
    frame = draw(build("covering"))
    short = caption(frame, "step 3  reward 0.70  total 1.40  obstacle_hit")
    long, empty = caption(frame, "obstacle_hit" * 6), caption(frame, "")
    assert short.shape == long.shape == empty.shape
    assert short.shape[1:] == (480, 3)
    assert short.dtype == np.uint8
    for captioned in (short, long):
        np.testing.assert_array_equal(captioned[:480], frame)
        strip = captioned[480:]
        assert 20 <= len(strip) <= 60
        assert strip.min() < 80  # dark letters
        assert (strip[:, :4] == strip[0, 0]).all()  # within the margins
        assert (strip[:, -4:] == strip[0, 0]).all()
    assert (empty[480:] == empty[480, 0]).all()


@pytest.mark.parametrize("width", [120, 240, 320])
def test_a_caption_fits_however_narrow_the_frame_is(width):
    frame = np.full((50, width, 3), 77, np.uint8)
    first = "step 123   reward +1.00   total 1234.00"
    second = "Q 123.45 (10 visits, 12 actions tried)   the end of all"
    full, half, empty = (caption(frame, f"{a}\n{b}") for a, b in
                         ((first, second), (first, ""), ("", "")))  # fmt: skip
    assert full.shape == half.shape == empty.shape
    strip, blank = full[50:], empty[50:]
    assert (strip[:, :4] == blank[:, :4]).all()
    assert (strip[:, -4:] == blank[:, -4:]).all()
    rows = (strip != blank).any((1, 2)).nonzero()[0]
    only_first = (half[50:] != blank).any((1, 2)).nonzero()[0]
    assert only_first.max() < rows.max() < len(strip) - 1  # two lines, inside the strip
    assert rows.min() > 0


def test_a_small_frame_is_enlarged_by_whole_pixels():
    frame = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    large = enlarge(frame, 8)
    assert large.shape == (6, 9, 3)
    np.testing.assert_array_equal(large[::3, ::3], frame)
    np.testing.assert_array_equal(large[2::3, 2::3], frame)
    assert enlarge(frame, 3).shape == frame.shape


def test_a_masked_action_has_no_bar():
    frame = np.full((90, 60, 3), 77, np.uint8)
    found = beside(frame, [Bar("up", 1.0, 3.0, True), Bar("no", None, None, False)], "values")
    for rgb in ((213, 94, 0), (153, 153, 153)):
        assert (found[60:, 60:] == rgb).all(-1).sum() == 0
        assert (found[30:60, 60:] == rgb).all(-1).sum() > 0


def test_bars_stand_beside_the_frame_on_one_scale():
    frame = np.full((90, 60, 3), 77, np.uint8)
    bars = [Bar("up", 0.0, 4.0, True), Bar("down", 2.0, None, False)]
    found = beside(frame, bars, "values")
    assert found.shape[0] == 90
    np.testing.assert_array_equal(found[:, :60], frame)
    strong, faint = ((found == rgb).all(-1).sum(1) for rgb in ((213, 94, 0), (153, 153, 153)))
    assert strong[30:60].max() == 32  # the largest number: all the room, a pixel at each end
    assert strong[60:].max() == 0
    assert faint[60:].max() == 17  # half of it


def test_a_sheet_has_a_labelled_row_per_level(tmp_path):
    rows = [
        (f"level {level}", [draw(build(task), 128) for task in tasks])
        for level, tasks in enumerate([("covering", "connecting"), ("silhouette",)])
    ]
    contact_sheet(rows, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
        sheet = np.array(image)
    height, width, _ = sheet.shape
    # Margins of 24 pixels around, 12 between the pictures.
    assert height == 24 + 128 + 12 + 128 + 24
    right, left = width - 24 - 128, width - 24 - 128 - 12 - 128
    np.testing.assert_array_equal(sheet[24:152, left : left + 128], rows[0][1][0])
    np.testing.assert_array_equal(sheet[24:152, right : right + 128], rows[0][1][1])
    np.testing.assert_array_equal(sheet[164:292, left : left + 128], rows[1][1][0])
    assert (sheet[164:292, right : right + 128] == 255).all()  # this row is shorter
    for top in (24, 164):
        assert sheet[top : top + 128, 24 : left - 24].min() < 80  # a label
    assert (sheet[:, :20] == 255).all()
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_a_sheet_grows_with_its_rows_columns_and_labels(tmp_path):
    picture = draw(build("covering"), 128)

    def size(label, rows, columns):
        contact_sheet([(label, [picture] * columns)] * rows, tmp_path / "sheet.png")
        with Image.open(tmp_path / "sheet.png") as image:
            return np.array(image.size)

    one = size("level 0", 1, 1)
    assert tuple(size("level 0", 3, 1) - one) == (0, 2 * 140)
    assert tuple(size("level 0", 1, 4) - one) == (3 * 140, 0)
    wider, same_height = size("mixed_height_targets", 1, 1) - one
    assert wider > 50
    assert same_height == 0
    assert tuple(size("level 0\nx", 1, 1)) == tuple(one)  # lines are below each other


def test_the_lines_of_a_label_end_at_its_right(tmp_path):
    picture = np.full((128, 128, 3), 255, np.uint8)
    contact_sheet([("WWWWWW\nW", [picture])], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        label = np.array(image)[24:152, : image.size[0] - 24 - 128 - 4].min(-1) < 128
    dark = np.flatnonzero(label.any(1))
    upper, lower = label[: dark[len(dark) // 2]], label[dark[len(dark) // 2] :]
    (first, last), (second, end) = (np.flatnonzero(part.any(0))[[0, -1]] for part in (upper, lower))
    assert first < second
    assert abs(last - end) <= 2
    assert abs(dark.mean() - 64) < 6  # beside the middle of the picture


def test_nothing_is_not_saved(tmp_path):
    with pytest.raises(InputError, match="nothing to save"):
        save_gif([], tmp_path / "a.gif")
    for rows in ([], [("level 0", [])]):
        with pytest.raises(InputError, match="nothing to save"):
            contact_sheet(rows, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
