"""A check of the first file of the hours before anything starts, because the roles would find a misspelt column a minute later."""

from contextlib import closing, suppress
from difflib import get_close_matches

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.values_file import Values
from elastic_ctr.formats.readers.header import names_of
from elastic_ctr.jobs.scoring.listing import NothingToRead, complete_hours
from elastic_ctr.store import open_source
from elastic_ctr.training.trainer.conversions import format_of


def check_columns(values: Values) -> None:
    """Raises ConfigRefused if the header lacks a column that is read. If the file cannot be read now, the master reports that later."""
    found = None
    with suppress(NothingToRead, OSError, ValueError):
        found = _header(values)
    if found is None or values.features is None:
        return
    path, names = found
    wanted = [(f"features.{feature}", column) for feature, column in values.features.columns()]
    wanted += [
        (f"data.{key}", column) for key in ("label", "shows") if (column := getattr(values.data, key)) is not None
    ]
    wrong = []
    for key, column in wanted:
        if column not in names:
            [near, *_] = [*get_close_matches(column, names, 1), None]
            way_out = f"did you mean {near!r}?" if near else "name one of them"
            wrong.append(f"{key} reads the column {column!r}, which {path} lacks: it has {', '.join(names)}; {way_out}")
    if wrong:
        raise ConfigRefused("\n".join(wrong))


def _header(values: Values) -> tuple[str, tuple[str, ...]] | None:
    data = values.data
    if values.features is None or data.is_stream or not data.source.url.startswith("file:///"):
        return None
    with closing(open_source(data.source.url, data.source.user)) as source:
        for path in complete_hours(source, data, chosen=False).files:
            with source.open(path) as stream:
                if (names := names_of(stream, path, format_of(data), data.max_line_bytes)) is not None:
                    return path, names
    return None
