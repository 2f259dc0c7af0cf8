"""Click logs, rows in JSON, SequenceFiles and the JSON of predictions."""

import io
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import orjson

from elastic_ctr.formats.cells import Cells
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.json_rows import row_of, unknown_column
from elastic_ctr.formats.json_scan import RowScanner
from elastic_ctr.formats.line import LineRefused, parse_line
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.seqfile.file_format import SequenceFileDamaged
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols import elasticctr_json, open_inference
from elastic_ctr.serving.protocols.explain import Explanation
from elastic_ctr.serving.request_error import RequestError
from features_oracles import multislot
from fuzz.mutation import Field, Mutator

SLOTS = SlotList(("0", "1", "7", "user-id", "104"))
ROWS = InputColumns((TextInput("user", ""), TextInput("tags", "|"), TextInput("both", "")), ("price", "both"))
_LARGEST = 2**64 - 1
_WORD = re.compile(rb'"[^"]*"|[0-9]+')


class ClickLog:
    """Lines of a click log, in blocks; the plain parser is the oracle of the compiled one."""

    name = "click-log"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._number = 0
        self._converters = [Converter(SLOTS, None), Converter(SLOTS, 1_000_001, max_line_bytes=200)]

    def batch(self, count: int) -> int:
        """How many lines were taken."""
        block = b"\n".join(self._line() for _ in range(count)) + b"\n" * self._mutator.random.randrange(2)
        self._number += 1
        taken = 0
        for converter, sparse_dim, longest in zip(self._converters, (None, 1_000_001), (1 << 20, 200), strict=True):
            converted = converter.convert(block)
            lines = block.split(b"\n")
            lines = lines[:-1] if not lines[-1] else lines
            assert converted.records + len(converted.refused) <= len(lines)
            taken = converted.records
            if self._number % 20 == 0:
                expected = []
                for line in lines:
                    text = _plainly(line, sparse_dim, longest)
                    if text is not None:
                        expected.append(text)
                assert converted.text == b"".join(expected), "the compiled parser and the plain one differ"
                assert len(converted.refused) == len(lines) - len(expected)
        return taken

    def _line(self) -> bytes:
        draw = self._mutator.random
        names = [*SLOTS, *SLOTS, "99"]
        tokens = [str(draw.choice((0, 1, 1, 5, 10**6))), str(draw.choice((0, 0, 0, 1)))]
        for _ in range(draw.randrange(12)):
            key = draw.choice((draw.randrange(1, 1 << 20), draw.getrandbits(64), _LARGEST, 0))
            key = _LARGEST + 1 if draw.random() < 0.02 else key
            tokens.append(f"{key}:{draw.choice(names)}")
        line = draw.choice((b" ", b" ", b"  ", b"\t")).join(token.encode() for token in tokens)
        return self._mutator.mutated(line).replace(b"\n", b"") if draw.random() < 0.6 else line


def _plainly(line: bytes, sparse_dim: int | None, longest: int) -> bytes | None:
    try:
        return multislot(parse_line(line, SLOTS, sparse_dim, longest))
    except LineRefused:
        return None


class JsonRows:
    """Requests of rows and lines of rows; plain Python is the oracle of machine code."""

    name = "json-rows"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._scanners = [RowScanner(ROWS, 8, skips=skips) for skips in (False, True)]
        self._goldens = [
            json.dumps(document, ensure_ascii=False).encode()
            for document in (
                {"instances": [{"user": "u1", "price": 3.25, "tags": ["a", "b"]}, {}]},
                {"instances": [{"tags": "größe|b", "both": -7, "price": None, "user": True}] * 3},
                {"instances": [{"unknown": [1, "x", 2.5e-3], "user": 9007199254740991, "price": 1e22}]},
            )
        ]
        self._words = [
            b"null",
            b"-0",
            b"1e999",
            b"0.1e-400",
            b"[]",
            b"{}",
            b'""',
            b"18446744073709551616",
            b"[[[[",
            b"true",
        ]
        self._words += [b'"\\ud800"', b'"\xf4\x90\x80\x80"', b'"user"', b"1" * 25, b"3.14159265358979311599796"]

    def batch(self, count: int) -> int:
        """How many rows were read in machine code."""
        read = 0
        lines = []
        for _ in range(count):
            body = self._body()
            for scanner, skips in zip(self._scanners, (False, True), strict=True):
                cells = scanner.read(body)
                if cells is not None:
                    given = orjson.loads(body)["instances"]
                    assert skips or all(unknown_column(each, ROWS.columns) is None for each in given)
                    _compare(cells, [row_of(each, ROWS) for each in given])
                    read += len(cells)
            lines.append(body[len(b'{"instances": [') : -2].replace(b"\n", b""))
        self._read_lines(b"\n".join(lines))
        return read

    def _read_lines(self, block: bytes) -> None:
        wanted = Wanted(ROWS, "click", "seen")
        rows = refused = 0
        for batch in rows_in_range(io.BytesIO(block), "part-0", Format("jsonl"), wanted, max_line_bytes=200):
            assert len(batch.cells) == len(batch.shows) == len(batch.places)
            refused += len(batch.refused)
            rows += len(batch.cells)
        assert rows + refused == len(block.removesuffix(b"\n").split(b"\n"))

    def _body(self) -> bytes:
        draw = self._mutator.random
        body = draw.choice(self._goldens)
        if draw.random() < 0.6:
            found = draw.choice(list(_WORD.finditer(body)))
            body = body[: found.start()] + draw.choice(self._words) + body[found.end() :]
        return self._mutator.mutated(body, (), self._goldens) if draw.random() < 0.6 else body


def _compare(cells: Cells, due: list[tuple[list[bytes], list[float]]]) -> None:
    assert len(cells) == len(due)
    for row, (texts, numbers) in enumerate(due):
        assert [cells.text(row, place) for place in range(len(texts))] == texts
        assert cells.numbers[row].tobytes() == np.array(numbers).tobytes()


class SequenceFiles:
    """SequenceFiles of ours, plain and cut, and small ones with the markers of other writers."""

    name = "sequence-file"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed, big=True)
        self._goldens = []
        with tempfile.TemporaryDirectory() as name:
            for records, dim in ((0, 1), (1, 1), (5, 3), (40, 9)):
                file = Path(name) / f"{records}"
                keys = np.arange(1, records + 1, dtype=np.uint64)
                with SequenceFileWriter(file) as writer:
                    writer.write(keys, np.ones((records, dim), np.float32))
                data = file.read_bytes()
                # Where numbers may stand: lengths of records and keys, at any offset of 4 past the class names.
                fields: list[Field] = [(at, 4) for at in range(len(data) - 4, 70, -4)]
                fields += [(0, 4), (4, 1), (5, 1), (38, 1)]
                self._goldens.append((data, fields))

    def batch(self, count: int) -> int:
        """How many files were read to their end."""
        whole = 0
        for _ in range(count):
            golden, fields = self._mutator.random.choice(self._goldens)
            data = self._mutator.mutated(golden, fields, [other for other, _ in self._goldens])
            try:
                with SequenceFileReader(io.BytesIO(data), name="x") as reader:
                    if self._mutator.random.random() < 0.5:
                        for keys, values in reader:
                            assert len(keys) == len(values) > 0
                    else:
                        for key, value in reader.records():
                            assert len(key) + len(value) <= len(data) * 1100
            except SequenceFileDamaged:
                continue
            whole += 1
        return whole


class Predictions:
    """JSON bodies of the source's protocol, of the Open Inference Protocol and of explanations."""

    name = "prediction-json"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        slots = [{"slot_name": slot, "feasigns": [number, "18446744073709551615"]} for number, slot in enumerate(SLOTS)]
        lines = ["1 5:0 6:1 7:user-id", "9:104"]
        by_slot = [
            {"name": "0", "shape": [3], "datatype": "UINT64", "data": [1, 2, 3]},
            {"name": "0/lengths", "shape": [2], "datatype": "INT64", "data": [1, 2]},
        ]
        self._goldens = [
            json.dumps(document).encode()
            for document in (
                {"instances": [{"slots": slots}, {"slots": []}]},
                {"instances": [{"slots": slots[:1] * 3}]},
                {"inputs": [{"name": "line", "shape": [2], "datatype": "BYTES", "data": lines}]},
                {"id": "a", "inputs": by_slot, "outputs": [{"name": "probability"}], "parameters": {"x": 1}},
                {"instances": lines},
            )
        ]
        self._words = [
            b"null",
            b"-1",
            b"1e999",
            b"[]",
            b"{}",
            b'""',
            b"18446744073709551616",
            b"[[[[",
            b"\\ud800",
            b"true",
        ]

    def batch(self, count: int) -> int:
        """How many bodies were understood."""
        understood = 0
        for _ in range(count):
            draw = self._mutator.random
            number = draw.randrange(len(self._goldens))
            body = self._goldens[number]
            if draw.random() < 0.4:
                # A word for a word: JSON still, and another thing than expected.
                words = list(_WORD.finditer(body))
                found = draw.choice(words)
                body = body[: found.start()] + draw.choice(self._words) + body[found.end() :]
            if draw.random() < 0.6:
                body = self._mutator.mutated(body, (), self._goldens)
            try:
                if number == len(self._goldens) - 1 and draw.random() < 0.9:
                    instances = Explanation(body).instances(Schema(SLOTS), 100)
                elif (number < 2) == (draw.random() < 0.9):
                    instances = elasticctr_json.parse_inference(body, SLOTS, 100)
                else:
                    instances = open_inference.parse_infer(body).instances(Schema(SLOTS), 100)
            except RequestError as refused:
                if not 400 <= refused.status < 500:
                    raise
                continue
            assert instances.lengths.sum() == len(instances.feasigns)
            assert len(instances.lengths) == instances.rows * len(SLOTS)
            understood += 1
        return understood
