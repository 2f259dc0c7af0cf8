"""A worker of serving: its prediction ports and one Paddle thread. The parent orders it to load versions and to pin one.

Orders and answers are JSON lines, see `runtime.process_pool`; the worker also sends a line `counted` twice a second.
`python -m` starts it; it ends with its parent, however that ends.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import uvloop

import elastic_ctr
from elastic_ctr.config.serving_settings import ServingWorkerConfig
from elastic_ctr.cube.client.reader import CubeClient, CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.formats.line import LineRefused, parse_features
from elastic_ctr.machine_code.compiled import anew_if_stale
from elastic_ctr.runtime import logging as runtime_logging
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.runtime.lifecycle import bind, raise_fd_limit, wait_event
from elastic_ctr.serving.batching import predictor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.instances import Instances, instances_of, joined
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import NOT_AVERAGED
from elastic_ctr.serving.batching.schema import Schema, schema_of
from elastic_ctr.serving.batching.spare_networks import SpareNetworks
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend, Limits
from elastic_ctr.serving.routes import Routes
from elastic_ctr.serving.worker_counters import Counters
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest

if TYPE_CHECKING:
    from elastic_ctr.serving.frontends.grpc import GrpcFrontend
    from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 5.0
COUNT_SECONDS = 0.5
DOCUMENT_SECONDS = 2.0
OPEN_FILES = 65_536
SAMPLE_FILE = Path(layout.sample_file(1)).name

Message = dict[str, Any]
Doubles = npt.NDArray[np.float64]


class WorkerProcess:
    """Owns the batches, the frontends and the cube clients of this process."""

    def __init__(self, config: ServingWorkerConfig, writer: asyncio.StreamWriter) -> None:
        self._config = config
        serving = config.serving
        self._writer = writer
        self._counters = Counters()
        # Only this thread calls Paddle, or the event loop while it is idle: two concurrent calls have crashed.
        self._paddle = InlineExecutor("paddle")
        self._networks = SpareNetworks()
        self._batcher = Batcher(
            self._paddle,
            self._newest_live,
            self._counters,
            max_rows=serving.max_batch_rows,
            canary_rule=CanaryRule(serving.canary.share, serving.canary.feature),
        )
        self._routes = routes = Routes(
            self._batcher,
            self._counters,
            ThreadPoolExecutor(1, thread_name_prefix="parser"),
            model_name=serving.model_name,
            version=elastic_ctr.__version__,
            max_instances=serving.max_instances,
            max_body_bytes=serving.max_body_bytes,
        )
        self._frontend = HttpFrontend(
            routes.handle, Limits(max_body_bytes=serving.max_body_bytes), lambda status: routes.count("none", status)
        )
        # The native frontend for everyday requests, which owns the frontend above.
        self._native: NativeHttpFrontend | None = None
        self._compiling: asyncio.Task[NativeHttpFrontend] | None = None
        self._preloading: Future[None] | None = None
        # Orders under way: loads, checks and the opening of frontends.
        self._under_way: set[asyncio.Task[None]] = set()
        self._opened = False
        # The reason why the ports are not open.
        self._shut = "this worker is ending"
        self._grpc: GrpcFrontend | None = None
        self._clients: dict[tuple[int, int], CubeClient] = {}
        self._document: ReleaseDocument | None = None
        self._document_came = asyncio.Event()
        self._grace_seconds = 20.0
        self.stopped = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Carry out orders until SIGTERM or the order to stop, or until the parent closes the socket."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopped.set)
        self._preloading = self._paddle.submit(predictor.preload)
        self._compiling = compiling = asyncio.create_task(self._compile())
        running = (
            self._batcher.run(),
            self._keep_alive(),
            self._report(),
            self._command_loop(reader),
            self.stopped.wait(),
        )
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in running]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            # Raise the error of a task that failed: without one of its tasks the worker would answer nothing.
            task.result()
        frontends = [each for each in (self._native or self._frontend, self._grpc) if each is not None]
        await asyncio.gather(*(frontend.stop(self._grace_seconds) for frontend in frontends))
        self._say_counted()
        tasks.append(compiling)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        await self._writer.drain()

    async def _compile(self) -> NativeHttpFrontend:
        """Compile machine code, which takes a moment with a cache and half a minute without. Raises numba's errors."""
        from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend, NativeLimits

        serving = self._config.serving
        limits = NativeLimits(max_rows=min(serving.max_instances, serving.max_batch_rows))
        make = partial(NativeHttpFrontend, self._routes, self._frontend, limits)
        return await asyncio.to_thread(anew_if_stale, make)

    # -- orders

    async def _command_loop(self, reader: asyncio.StreamReader) -> None:
        long = {"check": self._check, "load": self._load, "listen": self._listen}
        while line := await reader.readline():
            order = json.loads(line)
            if (do := long.get(order["do"])) is not None:
                # A long order runs as a task, so that orders with new holders are carried out meanwhile.
                task = asyncio.create_task(self._carry_out(do, order))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                # Send this line before the load, during which the worker may send nothing for tens of seconds.
                self._say_counted()
            else:
                self._do(order)
                self._say({"id": order["id"], "ok": True})

    async def _carry_out(self, do: Callable[[Message], Awaitable[Message]], order: Message) -> None:
        self._say({"id": order["id"], **await do(order)})

    def _do(self, order: Message) -> None:
        if order["do"] == "document":
            self._document = ReleaseDocument.model_validate(order["document"])
            for client in self._clients.values():
                self._set_holders(client, self._document)
            self._document_came.set()
        elif order["do"] == "stage":
            self._batcher.stage = order["stage"]
        elif order["do"] == "pin":
            self._batcher.pin(order["version"])
        elif order["do"] == "canary":
            self._batcher.canary.version = order["version"]
        elif order["do"] == "keep":
            self._batcher.keep(set(order["versions"]))
        elif order["do"] == "stop":
            self._grace_seconds = order["graceSeconds"]
            self.stopped.set()

    def _set_holders(self, client: CubeClient, document: ReleaseDocument) -> None:
        # Versions in use stay known to the client, even if the document does not name them.
        pinned: dict[int, dict[str, tuple[int, ...]]] = {version: {} for version in self._batcher.in_use()}
        client.set_holders({**pinned, **document.addresses()}, document.draining())

    async def _listen(self, _order: Message) -> Message:
        if not self._opened and not self.stopped.is_set():
            try:
                await self._open_frontends()
                self._opened = True
            except Exception as failed:
                log.exception("the frontends cannot be opened; this worker ends, and another one tries again")
                self._shut = f"the frontends cannot be opened ({type(failed).__name__}: {failed})"
                # Some ports may be open, and cannot be opened twice.
                self.stopped.set()
        return {"ok": True} if self._opened else {"error": self._shut}

    async def _open_frontends(self) -> None:
        host, serving = self._config.host, self._config.serving
        if serving.grpc_port:
            # The import takes 20 MB, which a process without a gRPC port saves.
            from elastic_ctr.serving.frontends.grpc import GrpcFrontend

            self._grpc = GrpcFrontend(self._routes, serving.max_body_bytes)
            await self._grpc.listen(host, serving.grpc_port)
        _freeze_gc()
        # HTTP opens last, because its answer shows clients that gRPC is open as well.
        assert self._compiling is not None
        # The end of the worker must not cancel the compilation halfway.
        self._native = await asyncio.shield(self._compiling)
        await self._native.listen(bind(host, serving.port, share=True))

    # -- versions

    async def _load(self, order: Message) -> Message:
        try:
            await self._load_version(order["version"], Path(order["folder"]))
        except Exception as failed:
            log.exception("version %s cannot be loaded", order["version"])
            return {"error": f"version {order['version']} cannot be loaded ({type(failed).__name__}: {failed})"}
        return {"ok": True}

    async def _load_version(self, version: int, folder: Path) -> VersionManifest:
        """Load and warm up the network. Raises predictor.NetworkUnusable, OSError, ValueError."""
        manifest = VersionManifest.model_validate_json((folder / layout.MANIFEST).read_bytes())
        loaded = self._batcher.versions.get(version)
        if loaded is None:
            schema = schema_of(manifest, folder, ignores_unknown=self._config.serving.ignore_unknown)
            network = await asyncio.get_running_loop().run_in_executor(
                self._paddle, self._networks.load, folder, len(manifest.slots) * manifest.dim, len(manifest.numbers)
            )
            client = self._client(manifest.dim, manifest.partitions)
            averaged = np.array([slot in manifest.averaged for slot in manifest.slots], np.bool_)
            loaded = ModelVersion(
                version,
                schema,
                manifest.sparse_dim,
                manifest.dim,
                network,
                client,
                averaged if averaged.any() else NOT_AVERAGED,
                partial(self._networks.put, network),
            )
        # Wait for the compilation, which may block the event loop: no prediction should wait for it.
        assert self._compiling is not None
        await asyncio.wait([self._compiling])
        # Add it even if it is loaded already, because the batcher may be about to unload it.
        self._batcher.add(loaded)
        return manifest

    async def _check(self, order: Message) -> Message:
        """Load and warm up a version, and predict its samples by lookup and network. Only the checker does this."""
        version, folder = order["version"], Path(order["folder"])
        try:
            manifest = await self._load_version(version, folder)
            instances, published = read_samples(
                folder / SAMPLE_FILE, self._batcher.versions[version].schema, manifest.samples
            )
            served = await self._batcher.predict_at(version, instances) if instances.rows else published
            verdict = compare(version, served, published, self._config.serving.max_abs_diff)
        except (VersionNotHeld, CubeUnavailable) as unavailable:
            return {"later": str(unavailable)}
        except (predictor.NetworkUnusable, SamplesDamaged, ValueError) as refused:
            return {"refused": f"version {version}: {refused}"}
        except Exception as failed:
            log.exception("the check of version %s failed", version)
            return {"later": f"the check failed ({type(failed).__name__}: {failed})"}
        finally:
            self._batcher.keep(set())
        if verdict.refused is not None:
            return {"refused": verdict.refused, "maxAbsDiff": verdict.max_abs_diff}
        return {"passed": verdict.max_abs_diff}

    def _client(self, dim: int, partitions: int) -> CubeClient:
        client = self._clients.get((dim, partitions))
        if client is None:
            cube = self._config.cube
            client = self._clients[dim, partitions] = CubeClient(
                dim,
                partitions=partitions,
                timeout_ms=cube.lookup_timeout_ms,
                deadline_ms=cube.lookup_deadline_ms,
                hedge_ms=cube.hedge_ms,
            )
            if self._document is not None:
                self._set_holders(client, self._document)
        return client

    async def _newest_live(self) -> int | None:
        """Return the loaded live version of the newest document, requested from the parent; after a timeout, of the last one."""
        self._document_came.clear()
        self._say({"event": "not-held"})
        await wait_event(self._document_came, DOCUMENT_SECONDS)
        live = None if self._document is None else self._document.live
        return live if live in self._batcher.versions else None

    # -- background tasks

    async def _keep_alive(self) -> None:
        while True:
            for client in list(self._clients.values()):
                await client.keep_alive(sorted(self._batcher.in_use()))
            await asyncio.sleep(KEEP_ALIVE_SECONDS)

    async def _report(self) -> None:
        while True:
            self._say_counted()
            await asyncio.sleep(COUNT_SECONDS)

    def _say_counted(self) -> None:
        begun = (self._preloading, self._compiling, *self._under_way)
        busy = any(each is not None and not each.done() for each in begun)
        self._say({"event": "counted", "counts": self._counters.snapshot(), "busy": busy})

    def _say(self, line: Message) -> None:
        self._writer.write(json.dumps(line).encode() + b"\n")


class SamplesDamaged(ValueError):
    """sample.jsonl is not the file that the manifest describes; the text has the line and the reason."""


class Verdict(NamedTuple):
    """`refused` is None if every answer was near enough, else the sentence that names the worst line."""

    max_abs_diff: float
    refused: str | None


def read_samples(path: Path, schema: Schema, expected: int) -> tuple[Instances, Doubles]:
    """Return instances and published probabilities f64 [rows] of lines `{"line": features, "published": probability, …}`.

    Raises SamplesDamaged, OSError.
    """
    rows: list[Any] = []
    published: list[float] = []
    transformer = schema.transformer
    try:
        for line in path.read_bytes().splitlines():
            sample = orjson.loads(line)
            features = sample["line"].encode()
            if transformer is not None:
                row: Any = row_of(orjson.loads(features), transformer.inputs)
            else:
                # A sample's line may have no features.
                row = (
                    parse_features(features, schema.slots, None).keys
                    if features.strip()
                    else [[] for _ in schema.slots]
                )
            published.append(float(sample["published"]))
            rows.append(row)
    except (LineRefused, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise SamplesDamaged(
            f"{path.name} line {len(rows) + 1} is no sample with 'line' and 'published' ({type(wrong).__name__}: {wrong})"
        ) from wrong
    if len(rows) != expected:
        raise SamplesDamaged(f"{path.name} has {len(rows)} lines where the manifest says {expected}")
    if transformer is not None:
        pieces = transformer.in_pieces(cells_of(rows, transformer.inputs))
        instances = joined([Instances(it.keys, it.lengths, len(it.numbers), numbers=it.numbers) for _, it in pieces])
    else:
        instances = instances_of(rows, len(schema.slots))
    return instances, np.array(published, dtype=np.float64)


def compare(version: int, served: npt.ArrayLike, published: Doubles, allowed: float) -> Verdict:
    """Compare served with published probabilities. NaN is refused."""
    answers = np.asarray(served, dtype=np.float64)
    if not len(published):
        return Verdict(0.0, None)
    differences = np.abs(answers - published)
    # A NaN counts as the worst difference; JSON has no NaN to report.
    differences[np.isnan(differences)] = np.inf
    worst = int(np.argmax(differences))
    difference = float(differences[worst])
    if difference <= allowed:
        return Verdict(difference, None)
    return Verdict(
        min(difference, 1.0),
        f"version {version} answers sample line {worst + 1} with {answers[worst]:.9g}, and {published[worst]:.9g} was "
        f"published (difference {difference:.3g}, allowed {allowed:g}); publish the version again",
    )


def _freeze_gc() -> None:
    """Freeze the objects of loaded modules, and collect rarely. The garbage collector took 25 us of each request for walking through
    Paddle's modules, and requests leave no cycles.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def _main(control: int, config: ServingWorkerConfig) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control), limit=16 << 20)
    try:
        await WorkerProcess(config, writer).run(reader)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent has ended, so this process ends, too


def main() -> None:
    parser = argparse.ArgumentParser(prog="serving worker")
    for name in ("parent", "control", "index", "nice"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--config", type=ServingWorkerConfig.model_validate_json, required=True)
    given = parser.parse_args()
    die_with_parent(given.parent)
    os.nice(given.nice)
    raise_fd_limit(OPEN_FILES)
    # Ctrl-C signals all processes of the terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Paddle writes files to the working directory.
    os.chdir(given.folder)
    runtime_logging.configure_from_environment(f"serving-{given.index}")
    uvloop.run(_main(given.control, given.config))
    # Exit without Paddle's threads and destructors, which may fail.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
