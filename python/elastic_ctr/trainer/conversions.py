"""From a trainer's settings to how its records are converted."""

from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.role_files import TrainingMember
from elastic_ctr.features.readers.rows import Format, Wanted
from elastic_ctr.features.slots import SlotList
from elastic_ctr.features.statistics import Statistics
from elastic_ctr.trainer.converter import ClickConversion, Conversion, RowConversion


def feature_document(settings: TrainingMember, statistics: Statistics | None) -> FeatureDocument | None:
    """None where records hold feasigns."""
    return None if settings.features is None else FeatureDocument(features=settings.features, statistics=statistics)


def conversion_of(settings: TrainingMember, document: FeatureDocument | None) -> Conversion:
    """Raises ValueError and OSError where a feature lacks what it is made of."""
    data = settings.data
    if document is None or data.format == "clicks":
        return ClickConversion(SlotList(settings.input.slots), settings.model.sparse_dim, data.max_line_bytes)
    transformer = document.transformer()
    return RowConversion(
        transformer,
        document.features.averaged,
        Format(data.format, data.columns),
        Wanted(transformer.inputs, data.label, data.shows),
        data.max_line_bytes,
    )
