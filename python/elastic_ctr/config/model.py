"""`model:` in the values file: trainer, cube and serving must agree on it."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from elastic_ctr.config.addresses import StoreUrl
from elastic_ctr.config.networks import NETWORKS, WITHOUT_LAYERS, DeepFm, Network, or_a_name
from elastic_ctr.config.own_network import OWN
from elastic_ctr.config.section import EXACT, Section
from elastic_ctr.formats.value_kind import ValueKind

RuleName = Literal["naive", "adagrad", "std_adagrad", "adagrad_v2", "adam", "shared_adam"]


class SparseRule(Section):
    """How the first-order weight of a row learns. Names are the parameter server's SGD rules."""

    name: RuleName = Field(
        default="adam",
        description="naive, adagrad, std_adagrad, adagrad_v2, adam or shared_adam. The adam rules decay their moments by 0.9 "
        "and 0.999; Paddle takes no others.",
    )
    learning_rate: float = Field(default=1e-2, gt=0, description="Step size.")
    initial_g2sum: float = Field(default=3.0, gt=0, description="adagrad rules: what the gradient sum starts from.")
    weight_bounds: tuple[float, float] = Field(default=(-10.0, 10.0), description="Values are kept inside these.")

    @model_validator(mode="after")
    def _bounds(self) -> "SparseRule":
        if self.weight_bounds[0] >= self.weight_bounds[1]:
            raise ValueError(f"weightBounds {list(self.weight_bounds)} leave no room; give a lower and a higher number")
        return self


class VectorRule(SparseRule):
    """How the vector of a row learns. First-order weights begin at 0."""

    learning_rate: float = Field(default=2e-3, gt=0, description="Step size.")
    initial_range: float = Field(default=1e-2, ge=0, description="New embedx values are uniform in ± this.")


class Table(Section):
    """The sparse table: which keys grow, are saved, decay and go. score = nonclkCoeff·(show - click) + clickCoeff·click."""

    nonclk_coeff: float = Field(default=0.1, ge=0, description="Score of a show without click.")
    click_coeff: float = Field(default=1.0, ge=0, description="Score of a click.")
    embedx_threshold: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="A key gets its vector once its score reaches this. Above 0 it needs showClickDecayRate 1.",
    )
    base_threshold: float = Field(
        default=0, ge=0, description="A base or delta holds only keys whose score is at least this."
    )
    delta_threshold: float = Field(
        default=1e-6, ge=0, description="A delta holds keys whose score grew by this; 0 would hold every key there is."
    )
    delta_keep_days: float = Field(
        default=30,
        ge=0,
        description="A base or delta leaves out keys unseen for more days. Below deleteAfterUnseenDays, a key goes from "
        "predictions before it goes from the table.",
    )
    show_click_decay_rate: float = Field(
        default=0.98, ge=0, le=1, description="Shows and clicks, and so each score, are multiplied by it at day end."
    )
    delete_threshold: float = Field(default=0, ge=0, description="At day end a key with a lower score is deleted.")
    delete_after_unseen_days: float = Field(
        default=30, ge=0, description="At day end a key unseen for more days is deleted."
    )
    embedding_l2: float = Field(
        default=1e-4,
        ge=0,
        le=1,
        description="L2 regularisation: half of this times the sum of the squares of an impression's pooled values is added to "
        "its loss.",
    )
    embed: SparseRule = Field(default_factory=SparseRule, description="Rule of the first-order weight.")
    embedx: VectorRule = Field(default_factory=VectorRule, description="Rule of the vector.")

    @model_validator(mode="after")
    def _vectors_stay(self) -> "Table":
        if self.embedx_threshold > 0 and self.show_click_decay_rate < 1:
            raise ValueError(
                f"embedxThreshold {self.embedx_threshold} with showClickDecayRate {self.show_click_decay_rate:g} would lose "
                "vectors: the parameter server saves a key without its vector while its score is below embedxThreshold, and "
                "scores decay at day end; set showClickDecayRate to 1 or embedxThreshold to 0"
            )
        return self


class Dense(Section):
    """How the dense network learns."""

    learning_rate: float = Field(default=5e-4, gt=0, description="Adam's step size.")
    adam_d2sum: bool = Field(
        default=False, description="Use Paddle's newer update rule of the dense network, as in ElasticCTR."
    )
    l2: float = Field(
        default=0,
        ge=0,
        le=1,
        description="L2 regularisation: half of this times the sum of the squares of all weights, without biases, is added to the loss.",
    )


class StartFrom(Section):
    """The version whose training goes on, under other slots, features or another network."""

    store: StoreUrl | None = Field(
        default=None,
        description="The store of the other model, with an address as in store.config.url. Absent: this model's own store.",
    )
    user: str = Field(
        default="root",
        min_length=1,
        description="User that reads there; HDFS checks it. With store.config.keytab it is store.config.user.",
    )
    version: Literal["latest"] | Annotated[int, Field(ge=1, le=EXACT)] = Field(
        default="latest",
        description="The version to begin with; its checkpoint must still be in the store. latest: the newest that has one.",
    )


class Model(Section):
    """The network and its embeddings."""

    network: Network = Field(
        default=DeepFm(name="deepfm"),
        json_schema_extra=or_a_name,
        description="A name, or a map of a name and settings of that network alone, such as {name: dcn-v2, crossLayers: 2, layers: [256, "
        f"128]}}. The networks are {', '.join(NETWORKS)}; docs/models.md has their settings. {{file: my_network.py}} is one of your own "
        "for `elastic-ctr local`; for helm it is `--set-file model.network.source=my_network.py`.",
    )
    embedding_dim: int = Field(
        default=9, ge=2, le=512, description="Floats a key: the first-order weight and the vector after it."
    )
    sparse_dim: int | None = Field(
        default=None, ge=2, le=EXACT, description="Keys are feasign modulo this; null keeps all 64 bits."
    )
    partitions: int = Field(
        default=60, ge=1, le=4096, description="Parts of the table, for a model's whole life; shards may not exceed it."
    )
    values: ValueKind = Field(
        default="float32",
        description="How cube stores values: float16 takes half the memory, int8 about two fifths at embeddingDim 17. Training is the "
        "same. May be changed at any time; the next version becomes full parts.",
    )
    output: Literal["sigmoid", "softmax"] = Field(
        default="sigmoid",
        description="Output of the network: `sigmoid` gives one probability, `softmax` two classes as in ElasticCTR.",
    )
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of the dense network's first values.")
    table: Table = Field(default_factory=Table, description="The sparse table's rules.")
    dense: Dense = Field(default_factory=Dense, description="The dense network's rules.")
    start_from: StartFrom | None = Field(
        default=None,
        description="Begin with the table and network of another model, instead of with nothing: {version: latest}, or also {store: url}. "
        "embeddingDim, sparseDim, partitions and the names of the table's rules must be the same; slots, features and the network "
        "may be others. It acts once, when a training begins with an empty state.",
    )

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, dict) and "layers" in given:
            raise ValueError(
                "layers is a setting of the network now; move it into model.network, beside the name: network: {name: …, layers: […]}"
            )
        return given

    @model_validator(mode="after")
    def _classes(self) -> "Model":
        if self.network.name == OWN and self.output == "softmax":
            raise ValueError(
                "output softmax is that of the output layers of networks that are built in; a network of your own returns the "
                "logit itself: set output to sigmoid"
            )
        if self.network.name in WITHOUT_LAYERS and self.output == "softmax":
            raise ValueError(
                f"output softmax is that of fully connected layers, which {self.network.name} has none of; set output to sigmoid"
            )
        return self


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The inputs of the network: slots, whose keys' vectors are summed or averaged, and numbers.

    `definition` is the JSON of `features`, or empty if `data.slots` is used.
    """

    slots: tuple[str, ...]
    averaged: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    definition: str = ""


def digest_of_model(model: Model, given: ModelInput) -> str:
    """Return a digest; roles with another one would train or serve another model. It leaves out `values`, which each version names
    and which does not affect training, and `startFrom`, which only decides the first values.
    """
    trained = model.model_dump_json(by_alias=True, exclude={"values", "start_from"})
    text = f"{trained}{list(given.slots)}{given.definition}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_network(model: Model, given: ModelInput) -> str:
    """Return a digest; models of the same one have dense parameters of the same names, shapes, meaning and optimizer state."""
    parts = (
        model.network.model_dump_json(by_alias=True),
        model.output,
        model.embedding_dim,
        model.dense.adam_d2sum,
        list(given.slots),
        list(given.numbers),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
