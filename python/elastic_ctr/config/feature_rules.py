"""Rules between `features` and the blocks `data` and `model` of a values file."""

from elastic_ctr.config.data import Data
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model, ModelInput

# Slots that an error names.
_SHOWN = 10


def input_of(data: Data, features: Features | None) -> ModelInput:
    """Return the network's inputs: the slots of `data`, or the slots and numbers of `features`."""
    if features is None:
        assert data.slots is not None
        return ModelInput(data.slots)
    definition = features.model_dump_json(by_alias=True)
    return ModelInput(features.slots, features.averaged, features.numeric, definition)


def check_has_keys(setting: str, name: str, data: Data, features: Features | None) -> None:
    """Raises ValueError if `name`, the value of `setting`, is not empty and is no slot."""
    slots = input_of(data, features).slots
    if not name or name in slots:
        return
    shown = ", ".join(slots[:_SHOWN]) + (f" and {len(slots) - _SHOWN} more" if len(slots) > _SHOWN else "")
    if features is not None and name in features.numeric:
        raise ValueError(f"{setting} {name!r} is a number, which has no keys; bucketize it, or take one of {shown}")
    what = "slot of data.slots" if features is None else "feature"
    raise ValueError(f"{setting} {name!r} is no {what}; there are {shown}")


def check_late_clicks(data: Data, model: Model) -> None:
    """Raises ValueError if late clicks meet an adagrad rule: it divides by shows, and a late click has show 0."""
    for name, rule in (("embed", model.table.embed), ("embedx", model.table.embedx)):
        if data.stream.late_clicks and "adagrad" in rule.name:
            raise ValueError(
                f"data.stream.lateClicks does not go with model.table.{name}.name {rule.name}, which divides each gradient by the shows "
                "of its lines; take adam, shared_adam or naive"
            )


def check_features(data: Data, features: Features | None, model: Model) -> None:
    """Raises ValueError if `features` contradicts the rest of the values file."""
    if features is None:
        if data.format != "clicks":
            raise ValueError(f"features is missing; say what the columns of {data.format} rows mean to the network")
        return
    if data.format == "clicks":
        raise ValueError("features is for rows of columns; with data.format clicks, data.slots names the features")
    if model.sparse_dim is not None:
        raise ValueError("model.sparseDim is for data.format clicks; bound the keys of a feature by its `hash`")
    if data.columns is not None:
        features.check_columns(data.columns)
    for name, column in features.columns():
        if column in (data.label, data.shows):
            raise ValueError(f"features.{name} reads {column!r}, which says what was clicked: no request will have it")
