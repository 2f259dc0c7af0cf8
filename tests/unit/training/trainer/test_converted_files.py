from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.trainer.converted_files import hold_out, parts_of

LINES = [b"1 1 1 0 1 %d\n" % key for key in range(2000)]


def held_of(folder: Path, lines: list[bytes], share: float) -> tuple[list[bytes], list[bytes]]:
    """The records that are trained and those held out."""
    file = folder / "task.txt"
    file.write_bytes(b"".join(lines))
    held = hold_out(file, share)
    trained, held_out = (part.read_bytes().splitlines(keepends=True) for part in parts_of(file))
    assert len(held_out) == held
    return trained, held_out


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_about_the_share_is_held_out_and_no_record_is_lost_or_in_both(tmp_path: Path, share: float) -> None:
    trained, held_out = held_of(tmp_path, LINES, share)

    assert sorted(trained + held_out) == sorted(LINES)
    assert len(held_out) / len(LINES) == pytest.approx(share, abs=0.04)


def test_a_record_is_held_out_by_what_it_says_wherever_and_how_often_it_comes(tmp_path: Path) -> None:
    _, alone = held_of(tmp_path, LINES, 0.2)
    _, again = held_of(tmp_path, [*LINES[1000:], *LINES[::-1]], 0.2)

    assert set(again) == set(alone)


def test_impressions_of_the_same_features_are_held_out_together_clicked_or_not(tmp_path: Path) -> None:
    lines = [
        b"1 %d 1 %d 1 %d\n" % (shows, clicks, key) for key in range(30) for shows, clicks in ((1, 0), (1, 1), (9, 2))
    ]

    trained, held_out = ({line.split(b" ", 4)[4] for line in part} for part in held_of(tmp_path, lines, 0.3))

    assert trained
    assert held_out
    assert not trained & held_out


def test_a_larger_share_holds_out_what_a_smaller_one_does(tmp_path: Path) -> None:
    smaller, larger = (set(held_of(tmp_path, LINES, share)[1]) for share in (0.1, 0.3))

    assert smaller < larger


@given(lines=st.lists(st.sampled_from(LINES), max_size=30))
def test_both_parts_keep_the_order_of_the_file(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    trained, held_out = held_of(tmp_path_factory.mktemp("held"), lines, 0.5)

    chosen = set(held_out)
    assert trained == [line for line in lines if line not in chosen]
    assert held_out == [line for line in lines if line in chosen]


def test_a_division_that_fails_leaves_no_part_behind(tmp_path: Path) -> None:
    file = tmp_path / "task.txt"
    file.write_bytes(b"".join(LINES))
    (tmp_path / "task.held.part").mkdir()

    with pytest.raises(OSError, match=r"task\.held\.part"):
        hold_out(file, 0.5)

    assert not any(part.exists() for part in parts_of(file))
