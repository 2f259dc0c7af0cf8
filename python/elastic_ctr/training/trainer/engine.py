"""The trainer's use of Paddle Fleet, including its internals.

It depends on paddlepaddle 2.6.2, as found by experiment: asynchronous training over brpc parameter servers without
launcher, gloo or barriers. TEST_MODE keeps a joining trainer from overwriting the dense parameters.
"""

import ctypes
import zlib  # noqa: F401  (before paddle: its libpaddle carries zlib symbols of its own, and a later import crashes)
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.runtime.lifecycle import preserve_sigterm_handler
from elastic_ctr.training.control.server_call import rows_at
from elastic_ctr.training.control.server_sockets import (
    await_servers,
    close_listeners,
    listen_nowhere,
    paddle_endpoints,
    socket_name,
)
from elastic_ctr.training.model.evaluation import Floats, Histograms
from elastic_ctr.training.model.grouped_auc import GroupSample
from elastic_ctr.training.model.networks.by_name import logit_of
from elastic_ctr.training.model.program import OFFSET, TABLE, build_program, offset, start_paddle
from elastic_ctr.training.trainer.take_over import Names, Values, random_rows, take_over

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


# Bytes of one pull. A server's answer is limited to 64 MiB; a larger one is lost, and Paddle goes on with uninitialised memory.
_PULLED_BYTES = 16 << 20
_SERVER_SECONDS = 60.0
_WAY_OUT = "lower the learning rates of model.table and model.dense"
_DIVERGED = f"the training has diverged: {_WAY_OUT}"
MODES = {"checkpoint": 0, "delta": 1, "base": 2, "batch": 3}


class EngineBroken(RuntimeError):
    """Paddle was stopped in the middle of a run, and this process cannot run it again."""


class Engine:
    """A trainer's access to the tables: train, predict, pull, save. One per process, never rebuilt.

    The sockets of the `servers` are in the working directory.
    """

    def __init__(
        self, model: Model, given: ModelInput, servers: int, *, threads: int, gradient_merge: int = 1, group: str = ""
    ) -> None:
        self._model = model
        self._input = given
        self._servers = servers
        self._threads = threads
        self._gradient_merge = gradient_merge
        self._group = group

    def connect(self, trainer_id: int) -> None:
        """Join as a trainer and pull the dense values, zeros before an initialisation. Raises OSError if a server does not answer."""
        # The import of Paddle installs a SIGTERM handler that ends the process at once, even in the middle of a task.
        with preserve_sigterm_handler():
            import paddle
            from paddle import static
            from paddle.distributed import fleet
            from paddle.distributed.ps.utils.public import get_the_one_recv_context

        start_paddle(self._model)
        merge_gradients(self._gradient_merge)
        role = fleet.UserDefinedRoleMaker(
            current_id=trainer_id,
            role=fleet.Role.WORKER,
            worker_num=1,
            server_endpoints=paddle_endpoints(self._servers),
        )
        fleet.init(role)
        self._paddle, self._fleet = paddle, fleet
        self._graph = build_program(self._model, self._input, self._group)
        self._main = static.default_main_program()
        self._place = paddle.CPUPlace()
        self._executor = static.Executor(self._place)
        self._executor.run(static.default_startup_program())
        self._scope = static.global_scope()
        dense_names = [p.name for p in self._main.all_parameters() if p.name != TABLE]
        self._first_values = {name: self._array(name).copy() for name in dense_names}
        await_servers(Path(), self._servers, _SERVER_SECONDS)
        # Before `init_worker`, in which Paddle's client opens its own server.
        filtered = listen_nowhere()
        fleet.init_worker()
        if not filtered:
            close_listeners()
        self._runtime = fleet.fleet._runtime_handle  # noqa: SLF001
        self._worker = self._runtime._worker  # noqa: SLF001
        self._dense_map = get_the_one_recv_context(self._runtime.context, split_dense_table=False)
        self._sparse_tables = list(get_the_one_recv_context(self._runtime.context, is_dense=False))
        self._predict_program = self._without_learning()
        self._pull_program = KeptProgram(
            paddle, static.normalize_program(self._main, self._graph.slots, self._graph.pooled)
        )
        program, self._head_feeds, self._head_output = self._head()
        self._head_program = KeptProgram(paddle, program)
        self._exported: tuple[bytes, SavedParameters] | None = None

    def initialise(self) -> None:
        """Push this trainer's first dense values. One trainer of a new generation does this."""
        self._set_dense(self._first_values)
        self._runtime._init_all_params(self._runtime.scopes, self._runtime._send_ctx, self._dense_map)  # noqa: SLF001
        self.pull_dense()

    def load(self, folder: str) -> None:
        """Have every server load a checkpoint from `folder` in its own working directory. Callers must count rows afterwards, because this
        returns even if a server loaded nothing.
        """
        self._worker.load_model(folder, MODES["checkpoint"])
        self.pull_dense()

    def load_tables(self, folder: str) -> None:
        """Like `load`, but only the sparse tables: a checkpoint of another network has dense values of other shapes."""
        for table in self._sparse_tables:
            self._worker.load_one_table(table, folder, MODES["checkpoint"])

    def set_dense_of(self, prefix: Path) -> None:
        """Push the dense values of this network's export at `prefix`. The optimizer's state stays that of the load."""
        static = self._paddle.static
        scope = static.Scope() if hasattr(static, "Scope") else self._paddle.base.core.Scope()
        with static.scope_guard(scope):
            static.load_inference_model(str(prefix), static.Executor(self._place))
            values = {name: np.array(scope.find_var(name).get_tensor()) for name in self._first_values}
        self._set_dense(values)
        self._runtime._init_all_params(self._runtime.scopes, self._runtime._send_ctx, self._dense_map)  # noqa: SLF001
        self.pull_dense()

    def initialise_from(self, prefix: Path, before: Names) -> str:
        """Like `initialise`, but take over what fits from the exported network at `prefix`, which has other inputs or layers.

        Return a sentence about what was taken over.
        """
        static = self._paddle.static
        now = Names(self._input.slots, self._input.numbers)
        theirs, ours = random_rows(before, now, self._model.embedding_dim)
        scope = static.Scope() if hasattr(static, "Scope") else self._paddle.base.core.Scope()
        with static.scope_guard(scope):
            executor = static.Executor(self._place)
            program, feeds, outputs = static.load_inference_model(str(prefix), executor)
            names = [each.name for each in program.list_vars() if each.persistable and scope.find_var(each.name)]
            arrays = {name: scope.find_var(name) for name in names if name not in ("feed", "fetch", OFFSET)}
            old = {name: np.array(each.get_tensor()) for name, each in arrays.items()}
            scope.find_var(OFFSET).get_tensor().set(np.zeros(1, np.float32), self._place)
            [scores] = executor.run(program, feed=dict(zip(feeds, theirs, strict=False)), fetch_list=outputs)
        wanted = _logits(scores)
        self.set_offset(0.0)

        def distance(values: Values) -> float:
            self._set_dense(values)
            return float(np.abs(_logits(self.score(*ours)) - wanted).mean())

        probes = self._shapes_with(slots=1), self._shapes_with(numbers=1)
        found = take_over(old, self._first_values, probes, before, now, distance)
        self._first_values = found.values
        self.initialise()
        return found.sentence

    def _set_dense(self, values: Values) -> None:
        for name, value in values.items():
            self._scope.find_var(name).get_tensor().set(np.asarray(value, np.float32), self._place)

    def _shapes_with(self, *, slots: int = 0, numbers: int = 0) -> dict[str, Sequence[int]]:
        """Return the shapes of the network's parameters if it had so many more inputs."""
        paddle, static = self._paddle, self._paddle.static
        program = static.Program()
        width = (len(self._input.slots) + slots) * self._model.embedding_dim
        beside = len(self._input.numbers) + numbers
        with static.program_guard(program, static.Program()), paddle.utils.unique_name.guard():
            pooled = static.data("pooled", [None, width], "float32")
            logit_of(self._model, pooled, static.data("numbers", [None, beside], "float32") if beside else None)
        return {each.name: tuple(each.shape) for each in program.all_parameters()}

    def close(self) -> None:
        self._fleet.stop_worker()

    def _without_learning(self) -> Any:
        """Return the forward pass for dataset runs, 2.7 times as fast as the training program without its pushes.

        The device worker looks up its dense tables by the program's id, so the clone's id is registered, too.
        """
        forward = self._main.clone(for_test=True)
        options = self._main._fleet_opt  # noqa: SLF001
        [tables] = options["program_configs"].values()
        forward._fleet_opt = {**options, "program_configs": {str(id(forward)): tables}}  # noqa: SLF001
        return forward

    def _head(self) -> tuple[Any, list[Any], Any]:
        """Build the dense network over the same parameters, from pooled vectors and numbers to a probability. Return the program, the feeds
        and the output.
        """
        paddle, static = self._paddle, self._paddle.static
        slots, numbers = len(self._input.slots), len(self._input.numbers)
        program = static.Program()
        with static.program_guard(program, static.Program()), paddle.utils.unique_name.guard():
            pooled = static.data("pooled", [None, slots * self._model.embedding_dim], "float32")
            others = [static.data("numbers", [None, numbers], "float32")] if numbers else []
            logit = logit_of(self._model, pooled, others[0] if others else None) + offset()
            return program, [pooled, *others], paddle.nn.functional.sigmoid(logit)

    def preload(self, file: Path, batch_size: int) -> Any:
        """Start reading a converted file in the background. Raises OSError if it cannot be opened, for which Paddle would end the
        process.
        """
        file.open("rb").close()
        dataset = self._paddle.distributed.InMemoryDataset()
        # Without a command Paddle reads the file itself, a third faster than through a shell and a pipe from `cat`.
        dataset.init(batch_size=batch_size, thread_num=self._threads, use_var=self._graph.feeds, pipe_command="")
        dataset.set_filelist([str(file)])
        dataset.preload_into_memory(1)
        return dataset

    def ready(self, dataset: Any, records: int) -> Any:
        """Wait for a preload and verify its number of records: Paddle silently treats a read error as the end of the file."""
        dataset.wait_preload_done()
        found = dataset.get_memory_data_size()
        if found != records:
            dataset.release_memory()
            raise RuntimeError(
                f"the engine read {found} records where {records} were written; the scratch disk lost some"
            )
        return dataset

    def train(self, dataset: Any, *, group_rows: int = 0) -> Histograms:
        """Train one round over a loaded dataset. Return the histograms of clicks and of shows without click by logit, each record scored
        just before it was trained. All pushes have arrived by then: Paddle's trainer waits for the servers at the end of a run, as
        `flush` does (`DistMultiTrainer::Finalize`).

        Afterwards `groups` has at most `group_rows` rows of the same counts, by group and logit.
        """
        return self._run(dataset, self._main, self._executor.train_from_dataset, group_rows=group_rows, aborts=True)

    def predict(self, dataset: Any, *, group_rows: int = 0) -> Histograms:
        """Like `train`, but without creating rows or pushing gradients."""
        self.pull_dense()
        return self._run(dataset, self._predict_program, self._executor.infer_from_dataset, group_rows=group_rows)

    def unpredictable(self, dataset: Any) -> tuple[Floats, Floats]:
        """Return the shows and clicks of the records that the model cannot predict. Like `predict`, it changes nothing.

        Raises RuntimeError if the network itself has values that are not numbers.
        """
        self.pull_dense()
        nothing = np.zeros((1, len(self._input.slots) * self._model.embedding_dim), np.float32)
        if not np.isfinite(self.score(nothing, np.zeros((1, len(self._input.numbers)), np.float32))).all():
            raise RuntimeError(f"the network has values that are not numbers, so {_DIVERGED}")
        self._run(dataset, self._predict_program, self._executor.infer_from_dataset, seeks=True)
        return self._graph.counter.unpredictable()

    def groups(self) -> GroupSample:
        """Return a sample of the groups of the last round's records."""
        return self._graph.counter.groups()

    def _run(self, dataset: Any, program: Any, run: Any, **how: Any) -> Histograms:
        """Run a program over a dataset and return its histograms. `how` are the arguments of `ScoreCounter.begin`."""
        counter = self._graph.counter
        counter.begin(**how)
        broken: SystemError | None = None
        try:
            run(program, dataset, print_period=10**9)
        except SystemError as failed:
            # Paddle only reports that one of its threads has met an exception.
            broken = failed
        try:
            counter.check()
        except FloatingPointError as failed:
            kind = RuntimeError if broken is None else EngineBroken
            raise kind(f"{failed}, so {_DIVERGED}") from failed
        if broken is not None:
            reason = "Paddle has given up in the middle of a batch; the training may have diverged"
            raise EngineBroken(f"{reason}: {_WAY_OUT}") from broken
        return counter.histograms()

    def set_offset(self, value: float) -> None:
        """Set the constant that is added to every logit in training, predictions, scores and the exported network."""
        self._scope.find_var(OFFSET).get_tensor().set(np.array([value], np.float32), self._place)

    def _array(self, name: str) -> npt.NDArray[Any]:
        return np.array(self._scope.find_var(name).get_tensor())

    @property
    def dense_names(self) -> list[str]:
        return [*self._first_values]

    def dense_value(self, name: str) -> npt.NDArray[np.float32]:
        """Return a dense parameter as last pulled."""
        return self._array(name).copy()

    def pull_dense(self) -> None:
        """Copy the servers' dense parameters into this process, whose own copy is stale after training."""
        self._runtime._pull_all_dense(self._runtime.scopes, self._runtime._send_ctx, self._dense_map)  # noqa: SLF001

    def pull(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """Return the values of keys as the forward pass sees them: [n, dim], zeros for a key without a row. Pull only known keys, because
        like a training pull this creates rows for unknown ones.
        """
        dim = self._model.embedding_dim
        most = max(1, _PULLED_BYTES // (4 * dim))
        pieces = [self._pulled(keys[at : at + most]) for at in range(0, len(keys), most)]
        return np.concatenate(pieces) if pieces else np.zeros((0, dim), np.float32)

    def _pulled(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """Return the values of at least one key, because Paddle refuses a feed without rows."""
        count = len(self._input.slots)
        rows = -(-len(keys) // count)
        padded = np.zeros(rows * count, np.uint64)
        padded[: len(keys)] = keys
        columns = padded.view(np.int64).reshape(count, rows, 1)
        feed = {
            slot.name: self._paddle.base.create_lod_tensor(column, [[1] * rows], self._place)
            for slot, column in zip(self._graph.slots, columns, strict=True)
        }
        fetched = self._pull_program.run(feed, [each.name for each in self._graph.pooled])
        values: npt.NDArray[np.float32] = np.concatenate(fetched)[: len(keys)].astype(np.float32, copy=False)
        return values

    def score(self, pooled: npt.NDArray[np.float32], numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return click probabilities by the dense parameters as last pulled: [n, slots * dim] and [n, numbers] -> [n]."""
        if not len(pooled):
            return np.zeros(0, np.float32)
        feed = {feed.name: array for feed, array in zip(self._head_feeds, (pooled, numbers), strict=False)}
        [scores] = self._head_program.run(feed, [self._head_output])
        return np.asarray(scores, np.float32).reshape(-1)

    def export_dense(self, folder: Path) -> list[Path]:
        """Write the dense network as an inference program with the parameters as last pulled. Return its files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "network.pdmodel", folder / "network.pdiparams"]
        if self._exported is None:
            # Not the program that scores: Paddle adds an operator to an exported program, whose name depends on earlier exports.
            program, feeds, output = self._head()
            with self._paddle.utils.unique_name.guard():
                self._paddle.static.save_inference_model(
                    str(folder / "network"), feeds, [output], self._executor, program=program
                )
            network = files[0].read_bytes()
            self._exported = network, SavedParameters(self._paddle, network)
        network, parameters = self._exported
        files[0].write_bytes(network)
        files[1].write_bytes(bytes(parameters))
        return files

    def save(self, folder: str, mode: str) -> None:
        """Have every server write its partitions to `folder` in its own working directory.

        A delta or base save resets `delta_score`, and a batch save adds 1 to `unseen_days`, so a save must not be repeated.
        """
        self._worker.save_all_model(folder, MODES[mode])

    def count_rows(self) -> list[int]:
        """Return the number of rows of the sparse tables at each server, in order. Raises OSError, ValueError."""
        sockets = [Path(socket_name(index)) for index in range(self._servers)]
        return [sum(rows_at(each, table) for table in self._sparse_tables) for each in sockets]

    def flush(self) -> None:
        """Wait until the servers have received every pushed gradient."""
        self._worker.client_flush()

    def shrink(self) -> None:
        """Decay shows and clicks of every sparse table and delete rows by the thresholds. This must not be repeated.

        `fleet.shrink` would do nothing, because it needs the trainer id 0, and the master counts trainers from 1.
        """
        for table in self._sparse_tables:
            self._worker.shrink_sparse_table(table, 0)


def _logits(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    inside = np.clip(np.asarray(scores, np.float64).reshape(-1), 1e-7, 1 - 1e-7)
    found: npt.NDArray[np.float64] = np.log(inside) - np.log1p(-inside)
    return found


# Milliseconds that a thread of the client waits for more gradients.
_PUSH_INTERVAL_MS = 1


def merge_gradients(batches: int) -> None:
    """Merge the gradients of up to so many batches of a trainer into one step. Call it after paddle is imported.

    These are variables of its library. In 2.6.2 neither the environment nor `paddle.set_flags` reaches them: they are not exported, and
    flags are parsed once, when paddle is imported. Raises RuntimeError for a Paddle without these variables.
    """
    import paddle

    library = ctypes.CDLL(str(Path(paddle.__file__).parent / "base" / "libpaddle.so"))
    for kind in ("sparse", "dense"):
        # The variable counts further batches beside the first.
        _paddle_flag(library, f"FLAGS_pserver_push_{kind}_merge_limit").value = batches - 1
        _paddle_flag(library, f"FLAGS_pserver_async_push_{kind}_interval_ms").value = _PUSH_INTERVAL_MS


def _paddle_flag(library: ctypes.CDLL, name: str) -> ctypes.c_int32:
    try:
        return ctypes.c_int32.in_dll(library, f"_ZN6paddle11distributed12paddle_flags{len(name)}{name}E")
    except ValueError as missing:
        raise RuntimeError(f"this paddlepaddle has no {name}; install requirements/run.txt") from missing
