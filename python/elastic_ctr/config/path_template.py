"""`data.path` as a template over time: the folder of each split, and the split of a folder."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache

from pydantic import JsonValue
from pydantic.config import JsonDict

_BRACES = re.compile(r"\{time:([^{}]*)\}")


class TimeCode(str):
    """A code of the time in a template, such as `%Y`; the same text as a plain str is a constant."""

    __slots__ = ()


# Only numbers with a fixed count of digits, so that a folder has one meaning. `%y` is missing, because its years repeat.
_DIGITS = {"%Y": 4, "%m": 2, "%d": 2, "%j": 3, "%H": 2, "%M": 2}
_DAY_MINUTES, _HOUR_MINUTES = 24 * 60, 60


def _has(code: str) -> JsonDict:
    return {"pattern": rf"\{{time:[^{{}}]*{code}"}


# The same rules for the chart: a path with `{time` has codes alone, and those that distinguish its splits.
PATH_SCHEMA: JsonDict = {
    "if": {"pattern": r"\{time"},
    "then": {
        "allOf": [
            {"pattern": r"^([^{}]|\{time:([^%{}]|%[YmdjHM])*\})*$"},
            _has("%Y"),
            {"if": _has("%j"), "else": {"allOf": [_has("%m"), _has("%d")]}},
        ]
    },
}
# By code, the intervals that need none.
_WITHOUT: dict[str, JsonDict] = {"%H": {"const": _DAY_MINUTES}, "%M": {"multipleOf": _HOUR_MINUTES}}
PATH_OF_INTERVAL: list[JsonValue] = [
    {
        "if": {"properties": {"path": {"pattern": r"\{time"}, "splitInterval": {"not": whole}}},
        "then": {"properties": {"path": _has(code)}},
    }
    for code, whole in _WITHOUT.items()
]


@dataclass(frozen=True)
class PathTemplate:
    """A segment is the name of a folder, cut into constant texts and codes such as `%Y`.

    A rendered path is relative to the source. `split_of` is its inverse: two splits never have the same folder.
    """

    segments: tuple[tuple[str, ...], ...]

    @cached_property
    def root(self) -> str:
        """The folders before the first that depends on the time."""
        first = next(number for number, each in enumerate(self.segments) if _codes(each))
        return "/".join("".join(each) for each in self.segments[:first])

    def folder(self, moment: datetime) -> str:
        """Return the folder of the split that begins at a wall-clock time."""
        values = {
            "%Y": moment.year, "%m": moment.month, "%d": moment.day, "%j": moment.timetuple().tm_yday,
            "%H": moment.hour, "%M": moment.minute,
        }  # fmt: skip
        return "/".join(
            "".join(f"{values[each]:0{_DIGITS[each]}}" if isinstance(each, TimeCode) else each for each in segment)
            for segment in self.segments
        )

    def moment(self, folder: str) -> datetime | None:
        """Return the beginning of the split with this folder; None if no split has it."""
        names = folder.split("/")
        if len(names) != len(self.segments):
            return None
        found: dict[str, int] = {}
        for segment, name in zip(self.segments, names, strict=True):
            if (codes := _codes_in(name, segment)) is None:
                return None
            found |= codes
        day = _day(found)
        if day is None or found.get("%H", 0) > 23 or found.get("%M", 0) > 59:
            return None
        moment = datetime(day.year, day.month, day.day, found.get("%H", 0), found.get("%M", 0))  # noqa: DTZ001 (wall clock)
        # A code may stand twice with different values.
        return moment if self.folder(moment) == folder else None

    def find(self, folders: Callable[[str], list[str]], first: datetime, last: datetime | None) -> Iterator[datetime]:
        """Yield the beginnings of splits of days from `first` to `last` that have a folder. `folders` lists those in a folder."""
        yield from self._below((), {}, folders, first.date(), None if last is None else last.date())

    def _below(
        self,
        names: tuple[str, ...],
        known: Mapping[str, int],
        folders: Callable[[str], list[str]],
        first: date,
        last: date | None,
    ) -> Iterator[datetime]:
        day = _day(known)
        # Other days are left out before their folders are listed.
        if day is not None and (day < first or (last is not None and day > last)):
            return
        if len(names) == len(self.segments):
            if (moment := self.moment("/".join(names))) is not None:
                yield moment
            return
        segment = self.segments[len(names)]
        in_root = not any(map(_codes, self.segments[: len(names) + 1]))
        for name in ["".join(segment)] if in_root else folders("/".join(names)):
            if (codes := _codes_in(name, segment)) is not None:
                yield from self._below((*names, name), {**known, **codes}, folders, first, last)


@lru_cache(maxsize=64)
def template_of(path: str, interval: int) -> PathTemplate:
    """Return the template of `data.path`; without `{time` the days are below it, `<path>/YYYYMMDD/HH[MM]`.

    Raises ValueError naming what is wrong, also if two splits of `interval` minutes have the same folder.
    """
    tokens = _tokens(path)
    if "{time" not in path:
        codes = "%Y%m%d/%H" if interval % _HOUR_MINUTES == 0 else "%Y%m%d/%H%M"
        tokens = iter([path, "/", *_time_tokens(codes)])
    segments: list[list[str]] = [[]]
    for token in tokens:
        first, *further = [token] if isinstance(token, TimeCode) else token.split("/")
        segments[-1].append(first)
        segments += ([each] for each in further)
    cut = (tuple(filter(None, each)) for each in segments)
    found = PathTemplate(tuple(each for each in cut if each))
    _check_unique({code for segment in found.segments for code in _codes(segment)}, path, interval)
    return found


def _tokens(path: str) -> Iterator[str]:
    for number, part in enumerate(_BRACES.split(path)):
        if number % 2:
            yield from _time_tokens(part)
        elif "{" in part or "}" in part:
            raise ValueError(
                f"path {path} has braces other than {{time:…}}; write a time as in /logs/dt={{time:%Y-%m-%d}}/hr={{time:%H}}"
            )
        else:
            yield part


def _time_tokens(text: str) -> Iterator[str]:
    for number, part in enumerate(re.split("(%.?)", text)):
        if number % 2 and part not in _DIGITS:
            raise ValueError(f"{{time:{text}}} in path has the code {part!r}; use {', '.join(_DIGITS)}")
        yield TimeCode(part) if number % 2 else part


def _codes(segment: tuple[str, ...]) -> list[str]:
    return [each for each in segment if isinstance(each, TimeCode)]


def _check_unique(codes: set[str], path: str, interval: int) -> None:
    wanted = [("%Y", {"%Y"}), ("%m and %d, or %j,", {"%m", "%d"})]
    if interval < _DAY_MINUTES:
        wanted.append(("%H", {"%H"}))
    if interval % _HOUR_MINUTES:
        wanted.append(("%M", {"%M"}))
    for name, needed in wanted:
        if not needed <= codes and not ("%d" in needed and "%j" in codes):
            longer = ", or set a longer splitInterval" if name in ("%H", "%M") else ""
            raise ValueError(
                f"path {path} has one folder for several splits of {interval} minutes; add {name} in {{time:…}}{longer}"
            )


def _codes_in(name: str, segment: tuple[str, ...]) -> dict[str, int] | None:
    """Return the values of the codes in the name of a folder; None if it is no name of this segment."""
    pattern = "".join(
        f"([0-9]{{{_DIGITS[each]}}})" if isinstance(each, TimeCode) else re.escape(each) for each in segment
    )
    match = re.fullmatch(pattern, name)
    return None if match is None else dict(zip(_codes(segment), map(int, match.groups()), strict=True))


def _day(found: Mapping[str, int]) -> date | None:
    """Return the day of these codes; None if it is unknown yet, or does not exist."""
    try:
        if "%Y" in found and "%m" in found and "%d" in found:
            return date(found["%Y"], found["%m"], found["%d"])
        if "%Y" in found and "%j" in found:
            day = date(found["%Y"], 1, 1) + timedelta(days=found["%j"] - 1)
            return day if day.year == found["%Y"] else None
    except (ValueError, OverflowError):
        pass
    return None
