"""What a save runs again and again does the same as Paddle prepared anew, after each training."""

from pathlib import Path

import pytest

from contract.engine_world import Clicks, engine
from elastic_ctr.config.model import Model

KEYS = (5, 6, 11, 12)
LINES: list[Clicks] = [
    (2, 1, {"a": [5], "b": [11]}),
    (1, 0, {"a": [6], "b": [12]}),
    (3, 0, {"a": [5, 6], "b": [12]}),
]
ROUNDS = 3
NETWORKS: list[str | dict[str, str | bool]] = ["deepfm", {"name": "dcn-v2", "layer_norm": True}]
# tests/contract/test_kept_programs.py has two networks in every run.
SELDOM = pytest.param({"name": "final-mlp", "gating": True}, marks=pytest.mark.nightly)


@pytest.mark.parametrize("network", [*NETWORKS, SELDOM], ids=str)
def test_exports_pulls_and_scores_are_those_of_paddle_after_each_training(
    tmp_path: Path, network: str | dict[str, str | bool]
) -> None:
    model = Model.model_validate({"network": network, "embeddingDim": 4, "partitions": 2})
    exported, programs = list[bytes](), set[bytes]()
    with engine(tmp_path / "engine", model) as started:
        [trainer] = started.trainers
        for number in range(ROUNDS):
            trainer.train(LINES * (number + 1))
            ours, theirs = tmp_path / f"ours-{number}", tmp_path / f"theirs-{number}"
            trainer.export(ours)
            pulled = trainer.pull(KEYS)
            pooled = [[*pulled[0], *pulled[2]], [*pulled[1], *pulled[3]]]
            scores = trainer.score(pooled)

            assert trainer.by_paddle(theirs, KEYS, pooled) == (pulled, scores)
            assert program_in(ours) == program_in(theirs)
            exported.append((ours / "network.pdiparams").read_bytes())
            programs.add((ours / "network.pdmodel").read_bytes())
            assert exported[-1] == (theirs / "network.pdiparams").read_bytes()

        assert len(set(exported)) == ROUNDS
        assert len(programs) == 1
        assert pulled[0] != [0] * 4


def program_in(folder: Path) -> bytes:
    """An exported program without the lines of Python that made its operators."""
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc.FromString((folder / "network.pdmodel").read_bytes())
    for block in program.blocks:
        for operator in block.ops:
            kept = [each for each in operator.attrs if each.name != "op_callstack"]
            del operator.attrs[:]
            operator.attrs.extend(kept)
    found: bytes = program.SerializeToString(deterministic=True)
    return found


def test_a_pull_of_more_keys_than_before_has_them_all(tmp_path: Path) -> None:
    with engine(tmp_path / "engine", Model(embedding_dim=4, partitions=2)) as started:
        [trainer] = started.trainers
        trainer.train([(1, 1, {"a": [key], "b": [key + 100]}) for key in range(1, 41)])
        few, many = trainer.pull([1, 2]), trainer.pull(range(1, 41))

        assert many[:2] == few
        assert trainer.pull([40]) == many[39:]


# The size of Paddle's messages. tests/unit/training/trainer/test_engine.py pulls in several pieces.
@pytest.mark.nightly
def test_keys_whose_values_are_more_than_a_message_are_pulled_whole(tmp_path: Path) -> None:
    # 78 MiB, of 64 that Paddle takes in one.
    keys = range(1, 40_001)
    with engine(tmp_path / "engine", Model(embedding_dim=512, partitions=2)) as started:
        [trainer] = started.trainers
        trainer.train(
            [(1, 1, {"a": [*keys[at : at + 50]], "b": [*keys[at + 50 : at + 100]]}) for at in range(0, 40_000, 100)]
        )
        whole, pieces = (
            trainer.last_values(keys),
            [trainer.last_values(keys[:20_000]), trainer.last_values(keys[20_000:])],
        )

        assert whole == [value for piece in pieces for value in piece]
        assert 0 not in whole
