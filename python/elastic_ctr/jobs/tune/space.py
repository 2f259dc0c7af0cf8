"""The search space: the settings of a trial that a sampler suggests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.model import Model
from elastic_ctr.config.networks import NETWORKS, CrossLayers
from elastic_ctr.config.training_settings import TrainerSettings

DEFAULT_NETWORKS = ("deepfm", "wide-deep", "lr", "fm", "dcn-v2", "final-mlp", "slot-dnn")
# The keys that are searched, except those that `--keep` names or whose beginning it names.
KEYS = (
    "model.network.layers", "model.network.dropout", "model.network.crossLayers", "model.embeddingDim",
    "model.table.embed.name", "model.table.embed.learningRate", "model.table.embed.initialG2Sum",
    "model.table.embedx.name", "model.table.embedx.learningRate", "model.table.embedx.initialG2Sum",
    "model.table.embedx.initialRange", "model.table.embeddingL2", "model.dense.learningRate", "model.dense.l2",
    "trainer.config.batchSize", "trainer.config.epochs",
)  # fmt: skip
# The rows of another model's checkpoint fit only the present values of these keys.
_OF_START_FROM = ("model.embeddingDim", "model.table.embed.name", "model.table.embedx.name")
_SHAPES = {"32": [32], "64-32": [64, 32], "128-64": [128, 64], "256-128": [256, 128], "400-400-400": [400, 400, 400]}
_DIMS = (5, 9, 17)
# Ranges of the learning rates of the first-order weight and of the vector.
_RATES = {
    "embed": {"adam": (1e-3, 5e-2), "adagrad": (1e-2, 0.5)},
    "embedx": {"adam": (2e-4, 1e-2), "adagrad": (2e-3, 0.2)},
}
_G2SUM = (0.03, 3.0)
_INITIAL_RANGE = (1e-4, 5e-2)
_EMBEDDING_L2 = (1e-5, 1e-1)
_DENSE_RATE = (1e-4, 5e-3)
_DENSE_L2 = (1e-6, 1e-2)
_EPOCHS = (1, 6)
_BATCH_SIZES = (16, 32, 64, 128, 256, 512)
# Batch sizes with more steps per epoch are not tried: they take minutes, and larger batches learn as well.
_MOST_STEPS = 8192


class Sampler(Protocol):
    """The methods of an Optuna trial that a space uses."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...
    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...
    def suggest_int(self, name: str, low: int, high: int) -> int: ...


def is_kept(key: str, kept: Sequence[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in kept)


@dataclass(frozen=True)
class Candidate:
    """The settings of a trial."""

    model: Model
    trainer: TrainerSettings


@dataclass(frozen=True)
class Space:
    """The values around the present ones.

    Attributes:
        networks: names of networks; a single one is not searched.
        kept: keys, or beginnings of keys, that are not changed.
        records: the records of the largest pass.
        whole: passes have all their records; otherwise batch size and epochs are not searched, because they would not fit whole passes.
        stops_by_itself: the epochs of a pass end by early stopping on `data.holdout`.
    """

    base: Candidate
    networks: tuple[str, ...]
    kept: tuple[str, ...]
    records: int
    whole: bool
    stops_by_itself: bool = False

    def keeps(self, key: str) -> bool:
        return is_kept(key, self.kept) or (self.base.model.start_from is not None and key in _OF_START_FROM)

    def suggest(self, sampler: Sampler) -> Candidate:
        """Return a suggestion. Raises ConfigRefused if the settings forbid the combination."""
        found: dict[str, Any] = {}

        def ask(key: str, suggest: Callable[..., Any], *bounds: Any, name: str = "", **more: Any) -> None:
            if not self.keeps(key):
                value = suggest(name or key, *bounds, **more)
                # Trained values are rounded as they are written.
                found[key] = float(f"{value:.3g}") if isinstance(value, float) else value

        network = self._network(sampler)
        if network["name"] != "lr":
            ask("model.embeddingDim", sampler.suggest_categorical, _DIMS)
        for block in ("embed",) if network["name"] == "lr" else ("embed", "embedx"):
            self._suggest_rule(sampler, block, ask, found)
        # 0 turns a regularisation off, which a logarithmic range never reaches.
        ask("model.table.embeddingL2", _or_zero(sampler), *_EMBEDDING_L2)
        ask("model.dense.learningRate", sampler.suggest_float, *_DENSE_RATE, log=True)
        ask("model.dense.l2", _or_zero(sampler), *_DENSE_L2)
        if self.whole:
            ask("trainer.config.batchSize", sampler.suggest_categorical, self.batch_sizes)
            if not self.stops_by_itself:
                ask("trainer.config.epochs", sampler.suggest_int, *_EPOCHS)
        return with_values(self.base, network, found)

    @property
    def batch_sizes(self) -> tuple[int | str, ...]:
        return ("auto", *(size for size in _BATCH_SIZES if self.records / size <= _MOST_STEPS))

    def _suggest_rule(self, sampler: Sampler, block: str, ask: Callable[..., None], found: Mapping[str, Any]) -> None:
        key = f"model.table.{block}"
        ask(f"{key}.name", sampler.suggest_categorical, tuple(_RATES[block]))
        rule = found.get(f"{key}.name", getattr(self.base.model.table, block).name)
        if rule in _RATES[block]:
            ask(
                f"{key}.learningRate",
                sampler.suggest_float,
                *_RATES[block][rule],
                log=True,
                name=f"{key}.learningRate.{rule}",
            )
        if rule == "adagrad":
            ask(f"{key}.initialG2Sum", sampler.suggest_float, *_G2SUM, log=True)
        if block == "embedx":
            ask(f"{key}.initialRange", sampler.suggest_float, *_INITIAL_RANGE, log=True)

    def _network(self, sampler: Sampler) -> dict[str, Any]:
        present = self.base.model.network.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.keeps("model.network"):
            return present
        name = self.networks[0]
        if len(self.networks) > 1:
            name = sampler.suggest_categorical("model.network", self.networks)
        network: dict[str, Any] = present if present.get("name") == name else {"name": name}
        kind = NETWORKS[name]
        if "layers" in kind.model_fields:
            if not self.keeps("model.network.layers"):
                network["layers"] = list(_SHAPES[sampler.suggest_categorical("model.network.layers", tuple(_SHAPES))])
            if not self.keeps("model.network.dropout"):
                network["dropout"] = round(sampler.suggest_float("model.network.dropout", 0, 0.5, step=0.1), 1)
        if issubclass(kind, CrossLayers) and not self.keeps("model.network.crossLayers"):
            network["crossLayers"] = sampler.suggest_int("model.network.crossLayers", 1, 3)
        if name == "final-mlp" and "layers" in network:
            network["secondLayers"] = network["layers"][-1:]
            network["heads"] = next(heads for heads in (8, 4, 2, 1) if network["layers"][-1] % heads == 0)
        return network

    def presets(self) -> list[dict[str, Any]]:
        """Return suggestions that often do well, for the first trials; the sampler chooses their other values."""
        steps = {"trainer.config.batchSize": 32, "trainer.config.epochs": 2, "model.dense.learningRate": 5e-4}
        small = {"model.network.layers": "64-32", "model.network.dropout": 0.2, "model.embeddingDim": 9, **steps}
        adam = {
            "model.table.embed.name": "adam", "model.table.embed.learningRate.adam": 5e-3,
            "model.table.embedx.name": "adam", "model.table.embedx.learningRate.adam": 1e-3,
            "model.table.embedx.initialRange": 1e-2,
        }  # fmt: skip
        adagrad = {
            "model.table.embed.name": "adagrad", "model.table.embed.learningRate.adagrad": 0.15,
            "model.table.embed.initialG2Sum": 0.1, "model.table.embedx.name": "adagrad",
            "model.table.embedx.learningRate.adagrad": 0.005, "model.table.embedx.initialG2Sum": 0.1,
            "model.table.embedx.initialRange": 1e-3,
        }  # fmt: skip
        strong = {"model.table.embeddingL2": 5e-3, "model.dense.l2": 1e-4}
        weak = {"model.table.embeddingL2": 1e-4, "model.dense.l2": 1e-5}
        first_order = {name: value for name, value in adam.items() if ".embed." in name}
        found: list[dict[str, Any]] = [
            {"model.network": "deepfm", **small, **adam, **strong},
            {"model.network": "lr", **steps, **first_order, **strong, "trainer.config.epochs": 4},
            {"model.network": "deepfm", **small, **adagrad, **weak},
            {"model.network": "dcn-v2", "model.network.crossLayers": 2, **small, **adam, **weak},
        ]
        if len(self.networks) == 1:
            found = [each for each in found if each.pop("model.network") == self.networks[0]]
        return [each for each in found if each.get("model.network", self.networks[0]) in self.networks]


def _or_zero(sampler: Sampler) -> Callable[[str, float, float], float]:
    """Return a suggestion of a regularisation that is off (0) in the lowest part of its range."""

    def suggest(name: str, low: float, high: float) -> float:
        value = sampler.suggest_float(name, low / 10, high, log=True)
        return 0.0 if value < low else value

    return suggest


def with_values(base: Candidate, network: Mapping[str, Any], found: Mapping[str, Any]) -> Candidate:
    """Return the base with another network and with these values by key. Raises ConfigRefused."""
    given = {
        "model": base.model.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "trainer": {"config": base.trainer.model_dump(mode="json", by_alias=True, exclude_unset=True)},
    }
    given["model"]["network"] = dict(network)
    for key, value in found.items():
        *steps, last = key.split(".")
        place: dict[str, Any] = given
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = value
    return Candidate(
        settings(Model, given["model"], "the trial's model"),
        settings(TrainerSettings, given["trainer"]["config"], "the trial's trainer.config"),
    )


def usable_networks(base: Candidate, wanted: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the networks that are compatible with the rest of the model, and a sentence for each of the others."""
    usable, refused = [], []
    for name in dict.fromkeys(wanted):
        try:
            with_values(base, {"name": name}, {})
        except ConfigRefused as wrong:  # noqa: PERF203 (each is refused for itself)
            refused.append(f"the network {name} is left out: {wrong}")
        else:
            usable.append(name)
    return tuple(usable), refused
