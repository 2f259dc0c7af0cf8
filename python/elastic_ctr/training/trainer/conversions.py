"""The conversions of records by a trainer's settings."""

from dataclasses import dataclass
from typing import cast

from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.feature_program import measured_inputs, transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.role_files import TrainingMember
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.formats.readers.batches import Format, Kind, Wanted
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions.pinned_statistics import read_statistics
from elastic_ctr.training.trainer.converter import ClickConversion, Conversion, RowConversion
from elastic_ctr.training.trainer.measurement import Measurement, RowReader


def feature_document(settings: TrainingMember, statistics: Statistics | None) -> FeatureDocument | None:
    """Return the features.json of a version, or None if records have feasigns."""
    if settings.features is None:
        return None
    return FeatureDocument(features=settings.features, statistics=statistics, missing=settings.data.missing_words)


def format_of(data: Data) -> Format:
    """Return the format of files of rows."""
    return Format(cast("Kind", data.format), data.columns, data.reader or "", data.partitions_below)


def conversion_of(settings: TrainingMember, document: FeatureDocument | None) -> Conversion:
    """Return the conversion. Raises ValueError and OSError if a feature lacks statistics or files."""
    data = settings.data
    if document is None:
        slots = SlotList(settings.input.slots)
        late_clicks = data.stream.late_clicks
        return ClickConversion(slots, settings.model.sparse_dim, data.max_line_bytes, late_clicks=late_clicks)
    transformer = document.transformer()
    return RowConversion(
        transformer,
        document.features.averaged,
        format_of(data),
        Wanted(transformer.inputs, data.label, data.shows, data.stream.late_clicks),
        data.max_line_bytes,
    )


def reader_of(data: Data, features: Features) -> RowReader:
    """Return a reader that collects statistics of rows, without any statistics itself."""
    missing = data.missing_words
    read = transformer_of(features.without_statistics(), None, missing).inputs
    wanted = Wanted(read, data.label, data.shows, data.stream.late_clicks)
    return RowReader(format_of(data), wanted, data.max_line_bytes, Measurement(*measured_inputs(features, missing)))


@dataclass(frozen=True)
class Recipe:
    """The conversion with the pinned statistics of a digest; an empty digest stands for none."""

    statistics: str
    document: FeatureDocument | None
    conversion: Conversion


def recipe_of(settings: TrainingMember, store: Store, digest: str) -> Recipe:
    """Return the recipe with the statistics of a digest. Raises ValueError, OSError."""
    statistics = read_statistics(store, digest) if digest else None
    document = feature_document(settings, statistics)
    return Recipe(digest, document, conversion_of(settings, document))


class Conversions:
    """How a trainer reads rows, and its current recipe."""

    def __init__(self, settings: TrainingMember, store: Store) -> None:
        """Raises ValueError, OSError if the features need no statistics but lack something else."""
        self._settings = settings
        self._store = store
        features = settings.features
        self.rows = None if features is None else reader_of(settings.data, features)
        """None where records hold feasigns."""
        needs_statistics = features is not None and features.needs_statistics
        # If statistics are needed, the first task names the pinned ones.
        self._recipe: Recipe | None = None if needs_statistics else recipe_of(settings, store, "")

    def recipe(self, statistics: str) -> Recipe:
        """Return the recipe with the statistics of this digest. Raises ValueError, OSError, StatisticsDamaged, StoreError."""
        if self._recipe is None or self._recipe.statistics != statistics:
            self._recipe = recipe_of(self._settings, self._store, statistics)
        return self._recipe
