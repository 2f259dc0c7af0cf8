"""compile.py DIM...: fill numba's cache (`NUMBA_CACHE_DIR`) with every loop that a role runs, for keys of so many floats."""

# ruff: noqa: INP001 (a script of the images, no package)

import io
import sys
from functools import partial
from tempfile import NamedTemporaryFile

import numpy as np
from numba.core.annotations.type_annotations import TypeAnnotation

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.cube.server.precompile import warm
from elastic_ctr.features.record_text import record_text, shuffled_lines
from elastic_ctr.features.statistics.collector import Collector
from elastic_ctr.features.transforms.xxh3 import hashes_of
from elastic_ctr.formats.cells import RowSample, cells_of
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.readers.loops import copy_spans, join_values
from elastic_ctr.formats.record_arrays import record_arrays
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.machine_code.compiled import anew_if_stale
from elastic_ctr.serving.frontends.native_http import precompile
from elastic_ctr.training.export.table_text import RowLayout, parse_rows


def leave_out_addresses() -> None:
    """The listing of types that numba keeps beside machine code has addresses of functions, by which two builds would differ."""
    TypeAnnotation.__str__ = lambda _: ""


def compile_all(dims: list[int]) -> None:
    leave_out_addresses()
    warm(dims)
    precompile()
    converted = Converter(SlotList.parse(["0"]), None).convert(b"1 0 7:0\n")
    record_arrays(converted.text, converted.records, 1)
    inputs = InputColumns((TextInput("tags", "|"),), ())
    for batches in (1, 2):  # of bytes that may not be written, and of joined ones
        collector = Collector(inputs)
        for _ in range(batches):
            collector.add(cells_of([([b"a|b"], [])], inputs))
        collector.to_bytes()
    RowSample().add(cells_of([([b"a|b"], [])], inputs))
    with NamedTemporaryFile() as lines:
        lines.write(b"1\n2\n")
        lines.flush()
        # As a trainer reads them: of a map that may not be written.
        list(shuffled_lines(np.asarray(np.memmap(lines.name, np.uint8, "r")), 1))
    compile_features()
    parse_rows(b"7 0 0 0.5 1 0 0.1\n", RowLayout.of("naive", "naive", 0))


def compile_features() -> None:
    """From rows of every kind of file to the engine's text. Serving compiles its own when it starts."""
    features = Features.model_validate(
        {"user": {"type": "categorical"}, "price": {"type": "numeric", "transform": [], "missing": 0}}
    )
    transformer = transformer_of(features, None)
    files = {"csv": b"click,user,price\n1,\xc3\xa4,2\n", "jsonl": b'{"click":1,"user":"a","price":2}\n'}
    for kind, content in files.items():
        form, wanted = Format(kind), Wanted(transformer.inputs, "click")  # type: ignore[arg-type]
        for batch in rows_in_range(io.BytesIO(content), "part-0", form, wanted):
            record_text(transformer.transform(batch.cells), batch.shows, batch.clicks)
    data, places = np.frombuffer(bytearray(b"ab"), np.uint8), np.array([0, 1], np.int64)
    room, found = np.empty(3, np.uint8), np.empty(1, np.int64)
    join_values(data, places, places + 1, np.array([2]), ord("|"), room, found, np.zeros(1, np.bool_))
    copy_spans(data, np.zeros((1, 2), np.int64), room)
    hashes_of(b"", np.empty(0, np.uint8), np.zeros(1, np.int64))


if __name__ == "__main__":
    anew_if_stale(partial(compile_all, [int(dim) for dim in sys.argv[1:]]))
