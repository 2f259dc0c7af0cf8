"""The content of a request of a model: feasigns of its slots, or the columns that its features read."""

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
    """`transformer` is None where requests hold feasigns; `digest` is that of the features it was made of.

    `ignores_unknown`: a column that no feature reads is left out, not refused. `document` is what the transformer was made of.
    """

    slots: SlotList
    transformer: Transformer | None = None
    digest: str | None = None
    ignores_unknown: bool = False
    document: FeatureDocument | None = None

    def reads_as(self, other: Schema) -> bool:
        """Whether a request that was read for one is right for the other."""
        return self.slots.names == other.slots.names and self.digest == other.digest

    def of_feasigns(self) -> SlotList:
        """Raises BadRequest where requests hold rows."""
        if self.transformer is not None:
            raise BadRequest("the model takes rows of columns, not feasigns; POST them to /v1/models/NAME:predict")
        return self.slots

    def of_rows(self) -> Transformer:
        """Raises BadRequest where requests hold feasigns."""
        if self.transformer is None:
            raise BadRequest(
                "the model takes feasigns of its slots, not rows of columns; its paths are /v2 and the prediction service's"
            )
        return self.transformer


def schema_of(manifest: VersionManifest, folder: Path, *, ignores_unknown: bool = False) -> Schema:
    """The content of a request of a version. Raises ValueError where its features do not give what its manifest says, OSError."""
    slots = SlotList(manifest.slots)
    if manifest.features is None:
        return Schema(slots)
    document = read_features((folder / FEATURES_FILE).read_bytes(), manifest.features)
    transformer = document.transformer()
    if transformer.slots.names != slots.names or transformer.numbers != manifest.numbers:
        raise ValueError(f"{FEATURES_FILE} gives other slots or numbers than the version's manifest; publish it again")
    return Schema(slots, transformer, manifest.features, ignores_unknown, document)
