"""Programs that a save runs: each is prepared once, then runs with the current values."""

from collections.abc import Mapping, Sequence
from typing import Any

_PARAMETERS = "serialised.parameters"


class KeptProgram:
    """A program with its own executor and scope, for one set of feeds and fetches.

    The preparation of a program costs many times its run. An executor in the global scope would have to prepare it again after each
    dataset run, which drops the child scopes in which the executor keeps its variables.
    """

    def __init__(self, paddle: Any, program: Any) -> None:
        self.program = program
        self._values = paddle.static.global_scope()
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._names = persistable_names(program)
        for each in program.list_vars():
            if each.persistable and each.type == each.type.SELECTED_ROWS:
                # The sparse table. Its values are in the servers; an operator only reads its shape.
                self._scope.var(each.name).get_selected_rows().get_tensor()._set_dims(list(each.shape))  # noqa: SLF001

    def run(self, feed: Mapping[str, Any], fetches: Sequence[Any]) -> list[Any]:
        """Return the fetches as arrays, computed from the global scope's current values, which are not copied."""
        for name in self._names:
            tensor = self._values.find_var(name).get_tensor()
            self._scope.var(name).get_tensor()._share_data_with(tensor)  # noqa: SLF001
        found: list[Any] = self._executor.run(
            self.program, feed=dict(feed), fetch_list=list(fetches), scope=self._scope
        )
        return found

    def bytes_of(self, name: str) -> bytes:
        """Return the bytes that an operator has written into a RAW variable."""
        found: bytes = self._scope.find_var(name).get_bytes()
        return found


class SavedParameters:
    """The parameters of an exported network as Paddle writes them to its `.pdiparams`."""

    def __init__(self, paddle: Any, network: bytes) -> None:
        program = paddle.static.Program()
        block = program.global_block()
        exported = paddle.static.deserialize_program(network).global_block()
        # In the order of `save_inference_model`, because the file has no names.
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
    """Return the names of the program's persistable tensors, without variables of feeds, fetches and operators."""
    return [each.name for each in program.list_vars() if each.persistable and each.type == each.type.LOD_TENSOR]
