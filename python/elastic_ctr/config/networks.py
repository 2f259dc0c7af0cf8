"""`model.network` in the values file: a network by its name, or a map with the name and the network's own settings."""

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.config import JsonDict

from elastic_ctr.config.own_network import OWN, OwnNetwork
from elastic_ctr.config.section import ALTERNATIVE, Section

Width = Annotated[int, Field(ge=1, le=65536)]
Widths = Annotated[tuple[Width, ...], Field(max_length=32)]
DEFAULT = "deepfm"


class Layered(Section):
    """Settings of fully connected layers."""

    layers: Widths = Field(default=(128, 64), description="Widths of the fully connected layers.")
    dropout: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Share of each fully connected layer's outputs that training sets to 0; predictions use all.",
    )
    layer_norm: bool = Field(
        default=False,
        description="Normalise each row before the activation of each fully connected layer. It keeps no statistics, so training and "
        "serving compute the same.",
    )


class SlotDnn(Layered):
    """Fully connected layers over all values of slots and all numbers, as in ElasticCTR."""

    name: Literal["slot-dnn"] = "slot-dnn"


class Lr(Section):
    """Logistic regression: the first-order weights alone."""

    name: Literal["lr"] = "lr"


class Fm(Section):
    """Factorization machine: first order and the dot products of all pairs."""

    name: Literal["fm"] = "fm"


class WideDeep(Layered):
    """First order, and fully connected layers over the vectors."""

    name: Literal["wide-deep"] = "wide-deep"


class DeepFm(Layered):
    """First order, pairs, and fully connected layers over the vectors."""

    name: Literal["deepfm"] = "deepfm"


class CrossLayers(Layered):
    """Settings of cross layers."""

    cross_layers: int = Field(
        default=3, ge=1, le=16, description="Number of cross layers; n layers have products of up to n + 1 inputs."
    )


class Dcn(CrossLayers):
    """Cross layers with one vector each, beside fully connected layers."""

    name: Literal["dcn"] = "dcn"


class DcnV2(CrossLayers):
    """Cross layers with one matrix each, beside or before fully connected layers."""

    name: Literal["dcn-v2"] = "dcn-v2"
    rank: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="The matrix of a cross layer is the product of two with this inner width. Absent: one full matrix.",
    )
    structure: Literal["parallel", "stacked"] = Field(
        default="parallel",
        description="parallel: the fully connected layers get what the cross layers get. stacked: they get the result of the cross layers.",
    )


class XDeepFm(Layered):
    """First order, a compressed interaction network (CIN) over whole vectors, and fully connected layers."""

    name: Literal["xdeepfm"] = "xdeepfm"
    cin_layers: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)] = Field(
        default=(32, 32),
        description="Feature maps of each layer of the CIN; n layers have products of up to n + 1 vectors. Time grows with "
        "the product of neighbouring widths and the number of slots.",
    )


class AutoInt(Layered):
    """Self-attention between slots; with layers, fully connected layers beside it (AutoInt+)."""

    name: Literal["autoint"] = "autoint"
    layers: Widths = Field(
        default=(), description="Widths of fully connected layers beside the attention; empty: attention alone."
    )
    attention_layers: int = Field(default=3, ge=1, le=16, description="Number of self-attention layers.")
    heads: int = Field(default=2, ge=1, le=64, description="Attention heads of each layer.")
    head_dim: int = Field(default=16, ge=1, le=1024, description="Width of the vectors of a head.")


class FinalMlp(Layered):
    """Two streams of fully connected layers, and the products of their results."""

    name: Literal["final-mlp"] = "final-mlp"
    layers: Annotated[tuple[Width, ...], Field(min_length=1, max_length=32)] = Field(
        default=(128, 64), description="Widths of the fully connected layers of the first stream."
    )
    second_layers: Annotated[tuple[Width, ...], Field(min_length=1, max_length=32)] = Field(
        default=(64,), description="Widths of the fully connected layers of the second stream."
    )
    heads: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="Pieces into which both results are cut before their products; must divide the last width of both streams.",
    )
    gating: bool = Field(
        default=False, description="Weigh each stream's inputs by a gate from 0 to 2, which learns from the row itself."
    )
    gate_layers: Widths = Field(default=(64,), description="Widths of the hidden layers of a gate.")

    @model_validator(mode="after")
    def _pieces(self) -> "FinalMlp":
        for key, widths in (("layers", self.layers), ("secondLayers", self.second_layers)):
            if widths[-1] % self.heads:
                raise ValueError(
                    f"heads {self.heads} does not divide {widths[-1]}, the last width of {key}; set heads to a divisor of it"
                )
        return self


# In the order in which documents and error messages list them; the first is the default.
AnyNetwork: TypeAlias = DeepFm | SlotDnn | Lr | Fm | WideDeep | Dcn | DcnV2 | XDeepFm | AutoInt | FinalMlp
NETWORKS: dict[str, type[AnyNetwork]] = {kind.model_fields["name"].default: kind for kind in get_args(AnyNetwork)}
"""The networks by name."""
WITHOUT_LAYERS = frozenset(name for name, kind in NETWORKS.items() if "layers" not in kind.model_fields)


def _named(given: Any) -> Any:
    """Return `{name: deepfm}` for `deepfm`, and give a map without a name that of the default network."""
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, dict) and ("source" in given or "file" in given):
        # Helm merges the chart's default name into every map; replace it.
        given = {**given, "name": OWN}
    elif isinstance(given, dict):
        # As in the chart, whose default is a map with this name that Helm merges into a map without a name.
        given = {"name": DEFAULT, **given}
        if given["name"] not in [*NETWORKS]:  # a list, because the given name may not be hashable
            said = f"there is no network {given['name']!r}; the networks are {', '.join(NETWORKS)}"
            raise ValueError(f"{said}, or {{file: my_network.py}} for one of your own")
    return given


def _tag_of(given: Any) -> str:
    return f"{ALTERNATIVE}{given.get('name') if isinstance(given, dict) else getattr(given, 'name', None)}"


def or_a_name(schema: JsonDict) -> None:
    """Add to the field's JSON schema the plain name that `_named` accepts."""
    alternatives = schema["oneOf"]
    assert isinstance(alternatives, list)
    alternatives.append({"type": "string", "enum": [*NETWORKS]})


Network: TypeAlias = Annotated[
    Annotated[DeepFm, Tag(f"{ALTERNATIVE}deepfm")]
    | Annotated[SlotDnn, Tag(f"{ALTERNATIVE}slot-dnn")]
    | Annotated[Lr, Tag(f"{ALTERNATIVE}lr")]
    | Annotated[Fm, Tag(f"{ALTERNATIVE}fm")]
    | Annotated[WideDeep, Tag(f"{ALTERNATIVE}wide-deep")]
    | Annotated[Dcn, Tag(f"{ALTERNATIVE}dcn")]
    | Annotated[DcnV2, Tag(f"{ALTERNATIVE}dcn-v2")]
    | Annotated[XDeepFm, Tag(f"{ALTERNATIVE}xdeepfm")]
    | Annotated[AutoInt, Tag(f"{ALTERNATIVE}autoint")]
    | Annotated[FinalMlp, Tag(f"{ALTERNATIVE}final-mlp")]
    | Annotated[OwnNetwork, Tag(f"{ALTERNATIVE}{OWN}")],
    Discriminator(
        _tag_of,
        custom_error_type="network",
        custom_error_message="A network is its name, or a map with its name and its settings",
    ),
    BeforeValidator(_named),
]


def refusal(name: str, setting: str, near: str | None) -> str:
    """Return the message for a setting that the network lacks: it is misspelt, or belongs to another network."""
    if name == OWN:
        return "is not a key of a network of your own, whose settings stand under model.network.settings; move it there"
    own = [field.alias or key for key, field in NETWORKS[name].model_fields.items() if key != "name"]
    others = [other for other, kind in NETWORKS.items() if any(f.alias == setting for f in kind.model_fields.values())]
    what = f"is not a setting of {name}, which has {', '.join(own) or 'none'}"
    if others:
        return f"{what}; remove it, or choose a network that has it: {', '.join(others)}"
    return f"{what}; did you mean {near}?" if near else f"{what}; remove it"
