"""Lines that are posted to an intake, and the rows among them that it joins."""

import csv

import orjson

from elastic_ctr.sources.intake.join import Kind, LateClicks
from elastic_ctr.sources.intake.request_lines import ClicksRefused, clicks_of
from fuzz.mutation import Mutator

COLUMNS = ("id", "click", "n", "city")
_GOLDENS = {
    "jsonl": [
        b'{"id": "a7", "click": 0, "n": 1, "city": ["x", {"n": 2}], "p": 1.5e3}',
        b'{"city":"gr\xc3\xb6\\u00dfe\\"","n":3,"id":7,"click":0.0}\r',
        b'{"id": "a7", "click": 1}',
    ],
    "csv": [b'a7,0,1,"x,""y"', b'"a,7",0,"1",z\r', b"a7,1,,"],
    "tsv": [b'a7\t0\t1\t"x', b"a7\t1\t\t\r"],
}


class IntakeRows:
    """A row that becomes a late click is the same but for its shows and its click."""

    name = "intake-rows"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._rules = [LateClicks(form, COLUMNS, "id", "click", "n", frozenset({"city"})) for form in _GOLDENS]

    def batch(self, count: int) -> int:
        """How many rows were impressions."""
        draw, found = self._mutator.random, 0
        for _ in range(count):
            rules = draw.choice(self._rules)
            line = draw.choice(_GOLDENS[rules.format])
            line = self._mutator.mutated(line) if draw.random() < 0.8 else line
            try:
                text = clicks_of(line, 1000).text
            except ClicksRefused:
                continue
            for each in text.split(b"\n")[:-1]:
                found += self._checked(rules, each)
        return found

    def _checked(self, rules: LateClicks, line: bytes) -> bool:
        if rules.row_of(line).kind is not Kind.IMPRESSION:
            return False
        late = rules.late_click_of(line)
        before, after = (_plainly(rules.format, each) for each in (line, late))
        one: object = 1 if rules.format == "jsonl" else "1"
        none: object = 0 if rules.format == "jsonl" else "0"
        assert after == {**before, "click": one, "n": none}, (line, late)
        return True


def _plainly(form: str, line: bytes) -> dict[str, object]:
    if form == "jsonl":
        found: dict[str, object] = orjson.loads(line)
        return found
    text = line.decode().removesuffix("\r")
    separator, quoted = {"csv": (",", csv.QUOTE_MINIMAL), "tsv": ("\t", csv.QUOTE_NONE)}[form]
    # A carriage return within a cell is no end of a row here.
    [row] = csv.reader([text.replace("\r", "\v")], delimiter=separator, quoting=quoted)  # type: ignore[arg-type]
    return dict(zip(COLUMNS, row, strict=True))
