"""The content of requests to a model: feasigns of its slots, or the columns that its features read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic_ctr.config.feature_document import FILE as FEATURES_FILE
from elastic_ctr.config.feature_document import FeatureDocument, read_features
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.request_error import BadRequest
from elastic_ctr.store.versions.manifest import VersionManifest


@dataclass(frozen=True)
class Schema:
    """`transformer` is None if requests contain feasigns; it was made from `document`, whose features have the digest `digest`.

    `ignores_unknown`: a column that no feature reads is ignored, not refused.
    """

    slots: SlotList
    transformer: Transformer | None = None
    digest: str | None = None
    ignores_unknown: bool = False
    document: FeatureDocument | None = None

    def reads_as(self, other: Schema) -> bool:
        """True if a request that was read for one schema is valid for the other."""
        return self.slots.names == other.slots.names and self.digest == other.digest

    def of_feasigns(self) -> SlotList:
        """Return the slots. Raises BadRequest if requests contain rows of columns."""
        if self.transformer is not None:
            raise BadRequest("the model takes rows of columns, not feasigns; POST them to /v1/models/NAME:predict")
        return self.slots

    def of_rows(self) -> Transformer:
        """Return the transformer. Raises BadRequest if requests contain feasigns."""
        if self.transformer is None:
            raise BadRequest(
                "the model takes feasigns of its slots, not rows of columns; its paths are /v2 and the prediction service's"
            )
        return self.transformer


def schema_of(manifest: VersionManifest, folder: Path, *, ignores_unknown: bool = False) -> Schema:
    """Return the schema of a version. Raises ValueError if its features do not match its manifest, OSError."""
    slots = SlotList(manifest.slots)
    if manifest.features is None:
        return Schema(slots)
    document = read_features((folder / FEATURES_FILE).read_bytes(), manifest.features)
    transformer = document.transformer()
    if transformer.slots.names != slots.names or transformer.numbers != manifest.numbers:
        raise ValueError(f"{FEATURES_FILE} gives other slots or numbers than the version's manifest; publish it again")
    return Schema(slots, transformer, manifest.features, ignores_unknown, document)
