"""From a trainer's settings to how its records are converted."""

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
from elastic_ctr.store import Store
from elastic_ctr.store.versions.pinned_statistics import read_statistics
from elastic_ctr.training.trainer.converter import ClickConversion, Conversion, RowConversion
from elastic_ctr.training.trainer.measurement import Measurement, RowReader


def feature_document(settings: TrainingMember, statistics: Statistics | None) -> FeatureDocument | None:
    """None where records hold feasigns."""
    if settings.features is None:
        return None
    return FeatureDocument(features=settings.features, statistics=statistics, missing=settings.data.missing_words)


def format_of(data: Data) -> Format:
    """Of files of rows."""
    return Format(cast("Kind", data.format), data.columns, data.reader or "")


def conversion_of(settings: TrainingMember, document: FeatureDocument | None) -> Conversion:
    """Raises ValueError and OSError where a feature lacks what it is made of."""
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
    """Reads rows for their statistics, which the features need not have yet."""
    missing = data.missing_words
    read = transformer_of(features.without_statistics(), None, missing).inputs
    wanted = Wanted(read, data.label, data.shows, data.stream.late_clicks)
    return RowReader(format_of(data), wanted, data.max_line_bytes, Measurement(*measured_inputs(features, missing)))


@dataclass(frozen=True)
class Recipe:
    """How records are converted with the pinned statistics, which are named by their digest; empty: with none."""

    statistics: str
    document: FeatureDocument | None
    conversion: Conversion


def recipe_of(settings: TrainingMember, store: Store, digest: str) -> Recipe:
    """Raises ValueError, OSError."""
    statistics = read_statistics(store, digest) if digest else None
    document = feature_document(settings, statistics)
    return Recipe(digest, document, conversion_of(settings, document))


class Conversions:
    """Of one trainer: how it reads rows, and its recipe of now."""

    def __init__(self, settings: TrainingMember, store: Store) -> None:
        """Raises ValueError, OSError where the features need no statistics and lack something else."""
        self._settings = settings
        self._store = store
        features = settings.features
        self.rows = None if features is None else reader_of(settings.data, features)
        """None where records hold feasigns."""
        needs_statistics = features is not None and features.needs_statistics
        # A task names the pinned statistics.
        self._recipe: Recipe | None = None if needs_statistics else recipe_of(settings, store, "")

    def recipe(self, statistics: str) -> Recipe:
        """With the statistics of this digest. Raises ValueError, OSError, StatisticsDamaged, StoreError."""
        if self._recipe is None or self._recipe.statistics != statistics:
            self._recipe = recipe_of(self._settings, self._store, statistics)
        return self._recipe
