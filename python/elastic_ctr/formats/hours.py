"""A tree of hours as the master reads it: `YYYYMMDD/HH/part-…`, then an empty donefile, and the slot list beside it."""

from __future__ import annotations

import errno
import json
import re
import shutil
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from elastic_ctr.formats.slots import SlotList

HOUR = timedelta(hours=1)
DONEFILE = "donefile"
SLOT_CONF = "slot.conf"
VALUES = "values.yaml"
TRUTH = "truth"

_HELD_BYTES = 64 << 20
_STAGING = ".staging"
_HOUR_FOLDERS = "[0-9]" * 8 + "/[0-9][0-9]"
_OURS = re.compile(rf"\d{{8}}|{re.escape(SLOT_CONF)}|{re.escape(VALUES)}|{TRUTH}|{re.escape(_STAGING)}")


class HoursRefused(ValueError):
    """A tree cannot be written there or with these options; the text is one sentence."""


def hour_name(hour: datetime) -> str:
    """Return `YYYYMMDD/HH` of the hour of a time."""
    return f"{hour.year:04d}{hour:%m%d/%H}"


def split_start(time: datetime, minutes: int) -> datetime:
    """Return the start of the split of a time; splits divide a day."""
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return day + timedelta(minutes=minutes) * ((time - day) // timedelta(minutes=minutes))


def parse_hour(text: str) -> datetime:
    """Parse an hour `YYYYMMDD/HH`. Raises HoursRefused for another form, or a time that does not exist."""
    with suppress(ValueError):
        if re.fullmatch(r"\d{8}/\d{2}", text):
            return datetime.strptime(text, "%Y%m%d/%H").replace(tzinfo=timezone.utc)
    raise HoursRefused(f"{text!r} is not an hour; write it as 20200401/00.")


def values_text(slots: SlotList, start: str, end: str) -> str:
    """Return the smallest values file that trains lines of clicks: `elastic-ctr local run -f OUT/values.yaml`."""
    names = "".join(f"    {json.dumps(name)},\n" for name in slots)
    return (
        "data:\n"
        '  source: {url: "file:."}    # the folder of this file; a cluster needs hdfs:// or a mounted file:///\n'
        "  path: /\n"
        f"  start: {start}\n"
        f"  end: {end}\n"
        f"  slots: [\n{names}  ]\n"
    )


def folders_of(out: Path) -> list[Path]:
    """Return the folders of hours, or of shorter splits, in an existing tree."""
    days = out.glob("[0-9]" * 8 + "/[0-9][0-9]*")
    return sorted(folder for folder in days if re.fullmatch(r"\d{2}(\d{2})?", folder.name) and folder.is_dir())


class HourTree(AbstractContextManager["HourTree"]):
    """Collects files of many hours in a staging folder with little memory, and publishes them hour by hour.

    An unpublished tree is not visible; leaving the context removes the staged files. A full disk raises HoursRefused.

    Args:
        out: the folder of the tree.
        force: replace an existing tree; other files beside it are kept.
        append: add hours after the existing ones, which are not changed.
        minutes: minutes of an existing folder; None if there is none.

    Raises:
        HoursRefused: `out` is not empty and neither `force` nor `append` is given, or it is not a folder.
    """

    def __init__(
        self,
        out: Path,
        *,
        force: bool = False,
        append: bool = False,
        minutes: int | None = None,
        held_bytes: int = _HELD_BYTES,
    ) -> None:
        if out.exists() and not out.is_dir():
            raise HoursRefused(f"{out} is not a folder; name another one.")
        if out.is_dir() and not (force or append) and any(path.name != _STAGING for path in out.iterdir()):
            raise HoursRefused(
                f"{out} is not empty; say --append to add later hours, --force to replace what is there, or name another folder."
            )
        if append and not (out / VALUES).exists():
            raise HoursRefused(f"{out} has no {VALUES}: --append needs a folder that was imported before.")
        self._out = out
        self._append = append
        self.minutes = minutes
        self._hours = sorted(f"{hour.parent.name}/{hour.name}" for hour in out.glob(_HOUR_FOLDERS))
        self.deleted = [] if append else self._hours
        self._staging = out / _STAGING
        shutil.rmtree(self._staging, ignore_errors=True)
        self._limit = held_bytes
        self._held: dict[str, list[bytes]] = {}
        self._held_bytes = 0

    def append(self, path: str, data: bytes) -> None:
        """Add to a file, `path` as in `20200401/00/part-00000`."""
        self._held.setdefault(path, []).append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._limit:
            self._stage()

    def publish(
        self, slots: SlotList | None, first: datetime, last: datetime, values: str | None = None, minutes: int = 60
    ) -> int:
        """Make the tree visible: all splits from first to last, each with its donefile once it is complete.

        A split of `minutes`, 60 or more, has the files of its hours, or an empty file if they have none. `values` is the values file,
        which is optional for lines of `slots`. Return the number of splits. Raises HoursRefused if the tree cannot be appended.
        """
        if self._append:
            self._stage()
            return self._publish_splits(self._after_those_there(slots, first, minutes), last, minutes)
        if slots is not None:
            self.append(SLOT_CONF, slots.text().encode())
            values = values or values_text(slots, hour_name(first), hour_name(last))
        self.append(VALUES, (values or "").encode())
        self._stage()
        for path in sorted(self._out.iterdir()):
            if path != self._staging and _OURS.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in (SLOT_CONF, VALUES, TRUTH):
            if (self._staging / name).exists():
                (self._staging / name).rename(self._out / name)
        return self._publish_splits(first, last, minutes)

    def _after_those_there(self, slots: SlotList | None, first: datetime, minutes: int) -> datetime:
        """Return the start of the split after the last existing one; splits between it and `first` become empty."""
        if slots is not None:
            if not (self._out / SLOT_CONF).exists():
                raise HoursRefused(f"{self._out} has no {SLOT_CONF}: it holds no lines of feasigns, as these are.")
            there = SlotList.parse((self._out / SLOT_CONF).read_text())
            if there.names != slots.names:
                raise HoursRefused(
                    f"{self._out / SLOT_CONF} has the slots {', '.join(there)}, and these rows {', '.join(slots)}; "
                    "they must be the same."
                )
        step = timedelta(minutes=minutes)
        last = parse_hour(self._hours[-1]) if self._hours else first - step
        if first <= last:
            raise HoursRefused(
                f"the rows begin in {hour_name(first)}, and {self._out} has hours up to {hour_name(last)}; --append adds later ones."
            )
        return last + step

    def _publish_splits(self, first: datetime, last: datetime, minutes: int) -> int:
        step = timedelta(minutes=minutes)
        splits = (last - first) // step + 1
        for number in range(splits):
            start = first + step * number
            folder = self._out / hour_name(start)
            folder.mkdir(parents=True)
            hours = [self._staging / hour_name(start + HOUR * hour) for hour in range(step // HOUR)]
            parts = [part for staged in hours if staged.exists() for part in sorted(staged.iterdir())]
            for place, part in enumerate(parts):
                part.rename(folder / f"part-{place:05d}")
            if not parts:
                (folder / "part-00000").touch()
            (folder / DONEFILE).touch()
        return splits

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise HoursRefused(
                f"{self._out}: the disk is full ({error.strerror}); free some space, or name a folder on another disk."
            ) from error

    def _stage(self) -> None:
        for path, pieces in self._held.items():
            staged = self._staging / path
            try:
                staged.parent.mkdir(parents=True, exist_ok=True)
                # Each file is closed at once, because there may be more hours than a process may have open files.
                with staged.open("ab") as file:
                    file.write(b"".join(pieces))
            except OSError as failed:
                raise HoursRefused(
                    f"{self._out} cannot be written: {failed.strerror or failed}; make room there, or name another folder"
                ) from failed
        self._held, self._held_bytes = {}, 0
