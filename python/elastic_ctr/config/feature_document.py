"""`features.json` of a version: the features and statistics from which trainers computed its keys and numbers."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.inputs import NO_WORDS, MissingWords
from elastic_ctr.runtime.documents import DocumentDamaged, read_document

FILE = "features.json"


class FeaturesDamaged(ValueError):
    """features.json is not the document that its version was trained with."""


class FeatureDocument(BaseModel):
    """The features and the statistics that `transformer` is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Features
    statistics: Statistics | None = None
    missing: MissingWords | None = None
    """None: of releases that knew no words."""

    def to_json(self) -> bytes:
        # Without the key, documents of earlier releases keep their digests.
        left_out = {"missing"} if self.missing is None else None
        return self.model_dump_json(by_alias=True, exclude=left_out).encode() + b"\n"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json()).hexdigest()

    def transformer(self) -> Transformer:
        """Return the transformer of these features. Raises NeedsStatistics, ValueError, OSError."""
        return transformer_of(self.features, self.statistics, self.missing or NO_WORDS)


def read_features(data: bytes, digest: str) -> FeatureDocument:
    """Raises FeaturesDamaged."""
    if hashlib.sha256(data).hexdigest() != digest:
        raise FeaturesDamaged(f"{FILE} is not the one that the version was trained with; publish the version again")
    try:
        found = read_document(FeatureDocument, data)
    except DocumentDamaged as wrong:
        raise FeaturesDamaged(f"{FILE} is damaged: {wrong}") from wrong
    if found.digest != digest:
        raise FeaturesDamaged(
            f"{FILE} was written by another release, which reads features otherwise; publish the version again"
        )
    return found
