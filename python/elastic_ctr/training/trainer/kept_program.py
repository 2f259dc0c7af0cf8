"""Programs that a save runs: each is prepared once and then run with the values of the moment."""

from collections.abc import Mapping, Sequence
from typing import Any

_PARAMETERS = "serialised.parameters"


class KeptProgram:
    """A program with an executor and a scope of its own, for one set of feeds and fetches.

    Preparing a program costs many times what running it does. An executor in the global scope would have to prepare it anew after each
    dataset run, which drops the scopes below the global one with the variables that the executor has kept there.
    """

    def __init__(self, paddle: Any, program: Any) -> None:
        self.program = program
        self._values = paddle.static.global_scope()
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._names = persistable_names(program)
        for each in program.list_vars():
            if each.persistable and each.type == each.type.SELECTED_ROWS:
                # The sparse table, whose values the servers have: an operator asks for its shape alone.
                self._scope.var(each.name).get_selected_rows().get_tensor()._set_dims(list(each.shape))  # noqa: SLF001

    def run(self, feed: Mapping[str, Any], fetches: Sequence[Any]) -> list[Any]:
        """The fetches as arrays, with the global scope's values of now; none of them is copied."""
        for name in self._names:
            tensor = self._values.find_var(name).get_tensor()
            self._scope.var(name).get_tensor()._share_data_with(tensor)  # noqa: SLF001
        found: list[Any] = self._executor.run(
            self.program, feed=dict(feed), fetch_list=list(fetches), scope=self._scope
        )
        return found

    def bytes_of(self, name: str) -> bytes:
        """What an operator has written into a variable of no type."""
        found: bytes = self._scope.find_var(name).get_bytes()
        return found


class SavedParameters:
    """The parameters of an exported network as Paddle writes them to its `.pdiparams`."""

    def __init__(self, paddle: Any, network: bytes) -> None:
        program = paddle.static.Program()
        block = program.global_block()
        exported = paddle.static.deserialize_program(network).global_block()
        # In the order of `save_inference_model`, by which a reader tells them apart.
        names = sorted(persistable_names(exported.program))
        variables = [block._clone_variable(exported.var(name)) for name in names]  # noqa: SLF001
        out = block.create_var(type=paddle.base.core.VarDesc.VarType.RAW, name=_PARAMETERS, persistable=True)
        block.append_op(
            type="save_combine",
            inputs={"X": variables},
            outputs={"Y": out},
            attrs={"file_path": "", "save_to_memory": True},
        )
        # The operator adds a variable to the program's description.
        program._sync_with_cpp()  # noqa: SLF001
        self._kept = KeptProgram(paddle, program)

    def __bytes__(self) -> bytes:
        self._kept.run({}, [])
        return self._kept.bytes_of(_PARAMETERS)


def persistable_names(program: Any) -> list[str]:
    """Of the program's variables that outlive a run, without those of feeds, fetches and operators."""
    return [each.name for each in program.list_vars() if each.persistable and each.type == each.type.LOD_TENSOR]
