"""The source's slot DNN: pooled slots side by side, fully connected layers with relu, one logit."""

from typing import Any


def logit(pooled: Any, slots: int, dim: int, layers: tuple[int, ...], outputs: int) -> Any:  # noqa: ARG001
    """Paddle variables in and out: [batch, slots * dim] -> [batch, outputs]. Every parameter is named: training and
    export build the same ones.
    """
    import paddle
    from paddle import static

    hidden = pooled
    for number, width in enumerate(layers):
        hidden = static.nn.fc(
            hidden,
            width,
            activation="relu",
            weight_attr=paddle.ParamAttr(name=f"fc{number}.w"),
            bias_attr=paddle.ParamAttr(name=f"fc{number}.b"),
        )
    return static.nn.fc(
        hidden, outputs, weight_attr=paddle.ParamAttr(name="out.w"), bias_attr=paddle.ParamAttr(name="out.b")
    )
