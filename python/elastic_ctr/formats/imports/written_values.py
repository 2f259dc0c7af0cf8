"""The values file that an import writes beside its hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_ctr.formats.hours import VALUES
from elastic_ctr.formats.imports.importers import ImportRefused
from elastic_ctr.formats.imports.proposal import Proposal, yaml_text
from elastic_ctr.formats.imports.row_answers import Answers


@dataclass(frozen=True)
class WrittenValues:
    """The settings below `data` for imported rows.

    Attributes:
        kind: `data.format`.
        answers: the columns of the answers.
        columns: names of the columns of files without header.
        interval: minutes of a folder.
        splits: folders of a pass.
    """

    kind: str
    answers: Answers
    columns: tuple[str, ...] | None = None
    interval: int = 60
    splits: int = 1

    def text(self, start: str, end: str, proposal: Proposal, *, guessed: bool) -> str:
        """Return the text of the values file. Raises ImportRefused if no column is left to learn from."""
        data = {
            "source": '{url: "file:."}    # the folder of this file; a cluster needs hdfs:// or a mounted file:///',
            "path": "/",
            "start": start,
            "end": end,
            "format": self.kind,
            "label": yaml_text(self.answers.counted),
        }
        if self.interval != 60:
            data["splitInterval"] = str(self.interval)
        if self.splits != 1:
            data["splitsPerPass"] = str(self.splits)
        if self.answers.show is not None:
            data["shows"] = yaml_text(self.answers.show)
        if self.columns is not None:
            data["columns"] = f"[{', '.join(map(yaml_text, self.columns))}]"
        features = proposal.features()
        if not features:
            found = "; ".join(f"{each.column!r}: {each.why}" for each in proposal.columns())
            raise ImportRefused(
                f"no column is left to learn from ({found}); --fields names those that become features. Nothing was written."
            )
        lines = ["data:", *(f"  {key}: {value}" for key, value in data.items())]
        return "\n".join(lines) + "\n" + features_text(features, proposal.rows if guessed else None)


def features_text(features: Mapping[str, str], rows: int | None) -> str:
    """Return the block `features:` of settings in YAML by name, with a comment on the rows from which they were guessed; None: they were not."""
    guessed = (
        ""
        if rows is None
        else f"    # guessed from the first {rows:,} rows: whole numbers may be ids, so they are categories"
    )
    lines = [f"features:{guessed}", *(f"  {yaml_text(name)}: {settings}" for name, settings in features.items())]
    return "\n".join(lines) + "\n"


def require_same(
    values: Mapping[str, object], kind: str, answers: Answers, columns: Sequence[str] | None, known: Sequence[str]
) -> None:
    """Raises ImportRefused if rows do not fit the values file of the existing hours."""
    data, features = values.get("data"), values.get("features")
    there = data if isinstance(data, dict) else {}
    listed = None if columns is None else list(columns)
    ours: dict[str, object] = {"format": kind, "label": answers.counted, "shows": answers.show, "columns": listed}
    for key, value in ours.items():
        if there.get(key) != value:
            raise ImportRefused(
                f"the {VALUES} there has data.{key} {there.get(key)}, and these rows {value}; they must be the same."
            )
    for name, feature in (features if isinstance(features, dict) else {}).items():
        column = feature.get("column") or name
        if feature.get("type") != "crossed" and column not in known:
            raise ImportRefused(
                f"the {VALUES} there has the feature {name} of the column {column!r}, which these rows lack; they have "
                f"{', '.join(known)}."
            )
