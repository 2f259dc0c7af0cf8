"""Rows by a function of the user's own: `data.reader: package.module:function`.

```python
def rows(file: BinaryIO, start: int, end: int | None) -> Iterator[pyarrow.RecordBatch]: ...
```
It is given a file as it is stored, and yields the rows that lie in [start, end), where None is the end of the file: whatever the
cut points, every row must be in exactly one range. Columns are read by the rules of `record_batches`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias

from elastic_ctr.features.readers.record_batches import batches_of
from elastic_ctr.features.readers.rows import ColumnsRefused, RowBatch, Wanted

Reader: TypeAlias = Callable[[BinaryIO, int, "int | None"], Iterator[Any]]


def find_reader(name: str) -> Reader:
    """The function that `package.module:function` names. Raises ValueError, with a sentence."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"the reader {name!r} is not package.module:function.")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"the reader {name!r} cannot be imported ({error}); is its package installed?") from error
    if not callable(found):
        raise ValueError(f"the reader {name!r} is not there: {module} has no function {function!r}.")  # noqa: TRY004
    return found  # type: ignore[no-any-return]


def rows_of_reader(
    name: str, stream: BinaryIO, path: str, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    """As `rows.rows_in_range`. `places` are row numbers in the range."""
    import pyarrow as pa

    first = 0
    for batch in find_reader(name)(stream, start, end):
        if not isinstance(batch, pa.RecordBatch):
            raise ColumnsRefused(
                f"the reader {name} yields {type(batch).__name__} for {path}; a reader yields pyarrow.RecordBatch."
            )
        yield from batches_of(batch, wanted, path, first, max_line_bytes)
        first += len(batch)
