"""Rows from a function of the user's: `data.reader: package.module:function`.

```python
def rows(file: BinaryIO, start: int, end: int | None) -> Iterator[pyarrow.RecordBatch]: ...
```
The function gets a file as it is stored, and yields the rows in [start, end), where None is the end of the file: for any cut
points, every row must be in exactly one range. Columns are read by the rules of `record_batches`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias

from elastic_ctr.formats.readers.batches import ColumnsRefused, RowBatch, Wanted
from elastic_ctr.formats.readers.record_batches import batches_of

_SHOWN = 300

Reader: TypeAlias = Callable[[BinaryIO, int, "int | None"], Iterator[Any]]


class ReaderFailed(ValueError):
    """A user's reader raised an error; the text is one sentence that names the reader, the file and the error."""


def find_reader(name: str) -> Reader:
    """Return the function that `package.module:function` names. Raises ValueError, with a sentence."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"the reader {name!r} is not package.module:function.")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"the reader {name!r} cannot be imported ({error}); is its package installed?") from error
    except Exception as error:  # an import runs the module's code
        raise ValueError(
            f"the reader {name!r} cannot be imported: {module} raises {_shown(error)}; mend it."
        ) from error
    if not callable(found):
        raise ValueError(f"the reader {name!r} is not there: {module} has no function {function!r}.")  # noqa: TRY004
    return found  # type: ignore[no-any-return]


def rows_of_reader(
    name: str, stream: BinaryIO, path: str, wanted: Wanted, start: int, end: int | None, max_line_bytes: int
) -> Iterator[RowBatch]:
    """As `rows.rows_in_range`. `places` are row numbers in the range. Raises ReaderFailed, too."""
    import pyarrow as pa

    first = 0
    for batch in _yielded(find_reader(name), name, stream, path, start, end):
        if not isinstance(batch, pa.RecordBatch):
            raise ColumnsRefused(
                f"the reader {name} yields {type(batch).__name__} for {path}; a reader yields pyarrow.RecordBatch."
            )
        yield from batches_of(batch, wanted, path, first, max_line_bytes)
        first += len(batch)


def _yielded(read: Reader, name: str, stream: BinaryIO, path: str, start: int, end: int | None) -> Iterator[Any]:
    """Yield the batches of a reader. Raises ReaderFailed."""
    try:
        yield from read(stream, start, end)
    except (OSError, ColumnsRefused):
        # An unreachable store is not the reader's fault; its task is assigned again.
        raise
    except Exception as error:
        raise ReaderFailed(
            f"the reader {name} failed in {path}: {_shown(error)}; mend the reader, or the file."
        ) from error


def _shown(error: Exception) -> str:
    """Return an error as `KeyError: 'boom'`, on one line and truncated."""
    told = " ".join(str(error).split())
    if len(told) > _SHOWN:
        told = told[:_SHOWN] + "…"
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
