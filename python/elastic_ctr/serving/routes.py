"""The paths of the prediction port: each parses its requests, submits them to the batcher and formats the answers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from elastic_ctr.formats.json_scan import RowScanner
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.http_connection import JSON_TYPE
from elastic_ctr.serving.batching.batcher import Batcher, Done, Parse
from elastic_ctr.serving.batching.instances import Instances, Lengths, best_places
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.fallback_http import Reply, Request
from elastic_ctr.serving.protocols import elasticctr_json, open_inference, rows_json
from elastic_ctr.serving.protocols.elasticctr_json import Scanner
from elastic_ctr.serving.protocols.explain import Explanation
from elastic_ctr.serving.protocols.tensors import MAX_ELEMENTS
from elastic_ctr.serving.request_error import BadRequest, NoProbability, RequestError, request_error_of, short_repr
from elastic_ctr.serving.worker_counters import Counters

log = logging.getLogger(__name__)

SOURCE_PATH = "/ElasticCTRPredictionService/inference"
PREDICTIONS, OPEN_INFERENCE, ROWS, EXPLANATIONS = "elastic_ctr", "open_inference", "rows", "explanations"
"""What predictions are counted as."""

_BINARY_TYPE = b"content-type: application/octet-stream\r\n"
_TEXT_TYPE = b"content-type: text/plain; charset=utf-8\r\n"
# A larger body is parsed on a thread beside the loop, one at a time, so that small requests are still answered.
PARSED_INLINE = 128 << 10
MOST_UNPACKED, FREELY_UNPACKED = 100, 1 << 20
"""How many times its own size a compressed body may become, and bytes that any may become. Requests shrink to a tenth or a thirtieth; deflate
makes 1,032 bytes of one at most, and a caller that sends little could make serving fill memory at no cost of its own.
"""

_GET, _POST = ("GET", "HEAD"), ("POST",)

Answered = Callable[[Floats, int, Lengths | None], tuple[bytes, bytes]]
"""From probabilities, their version and, with `top`, their places to the body and the headers of the answer. May raise RequestError."""


class _Route(NamedTuple):
    endpoint: str
    methods: tuple[str, ...]
    # Called with the request, its reply, and the version in the path or None.
    answer: Callable[[Request, Reply, str | None], None]


class Routes:
    """Answers requests of the prediction port. `version` is the package's version, for the protocol's server metadata."""

    def __init__(
        self,
        batcher: Batcher,
        counters: Counters,
        parser: Executor,
        *,
        model_name: str,
        version: str,
        max_instances: int,
        max_body_bytes: int = 8 << 20,
    ) -> None:
        self.batcher = batcher
        self.counters = counters
        self._parser = parser
        self.model_name = model_name
        self.package_version = version
        self.max_instances = max_instances
        self._max_body_bytes = max_body_bytes
        self._of_thread = threading.local()
        self._under_way: set[asyncio.Future[Instances]] = set()
        model = self._model_path = f"/v2/models/{model_name}"
        self.infer_path = f"{model}/infer"
        self.rows_path = f"/v1/models/{model_name}:predict"
        self._routes = {
            "/": _Route("metadata", _GET, lambda _, reply, __: reply(200, self._front_page().encode(), _TEXT_TYPE)),
            SOURCE_PATH: _Route(PREDICTIONS, _POST, self._inference),
            "/v2": _Route("metadata", _GET, lambda _, reply, __: reply(200, open_inference.server_metadata(version))),
            "/v2/health/live": _Route("health", _GET, lambda _, reply, __: reply(200, b'{"live":true}')),
            "/v2/health/ready": _Route("health", _GET, lambda _, reply, __: self._ready(reply, {})),
            model: _Route("metadata", _GET, lambda _, reply, __: reply(200, orjson.dumps(self.model_metadata()))),
            f"{model}/ready": _Route("health", _GET, lambda _, reply, __: self._ready(reply, {"name": model_name})),
            self.infer_path: _Route(OPEN_INFERENCE, _POST, self._infer),
            self.rows_path: _Route(ROWS, _POST, self._rows),
            f"/v1/models/{model_name}:explain": _Route(EXPLANATIONS, _POST, self._explain),
            f"/v1/models/{model_name}": _Route(
                "health", _GET, lambda _, reply, __: self._ready(reply, {"name": model_name})
            ),
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request, now or later. Never raises."""
        # An encoded slash is no separator (RFC 3986, 2.2).
        path = request.path if "%2f" in request.path.lower() else unquote(request.path)
        path, version = self._without_version(path.rstrip("/") or "/")
        route = self._routes.get(path)

        def counted(status: int, body: bytes, headers: bytes = JSON_TYPE, /) -> None:
            self.count("none" if route is None else route.endpoint, status)
            reply(status, body, headers)

        if route is None:
            counted(404, error_body(self._not_found(request.path)))
        elif request.method not in route.methods:
            why = f"{request.path} is asked with {route.methods[0]}, not with {request.method}"
            counted(405, error_body(why), JSON_TYPE + f"allow: {', '.join(route.methods)}\r\n".encode())
        elif version is not None and version != str(self.version()):
            counted(404, error_body(self._not_live(version)))
        else:
            route.answer(request, counted, version)

    def count(self, endpoint: str, status: int, times: int = 1) -> None:
        self.counters.requests[endpoint, status] += times

    def _without_version(self, path: str) -> tuple[str, str | None]:
        """Return the path without a version in it, and that version or None."""
        before, found, rest = path.partition(f"{self._model_path}/versions/")
        if before or not found:
            return path, None
        version, slash, what = rest.partition("/")
        return self._model_path + slash + what, version

    def _not_live(self, asked: str) -> str:
        return f"the version {short_repr(asked)} is not the live one, which is {self.version()}; ask without a version"

    def _not_found(self, path: str) -> str:
        parts = path.split("/")
        if parts[1:3] == ["v2", "models"] and len(parts) > 3 and parts[3] != self.model_name:
            return f"the model {parts[3][:40]!r} is not here; this is {self.model_name!r}"
        return f"{path[:80]!r} is not a path of this server; predictions are at {SOURCE_PATH}, {self.rows_path} and /v2"

    # -- small answers

    def _front_page(self) -> str:
        """Return a text page for a browser at the root path."""
        live = "no version is live yet" if self.version() is None else f"version {self.version()} is live"
        paths = "".join(f"{each.methods[0]:<4} {path}\n" for path, each in self._routes.items())
        return f"elastic-ctr {self.package_version} answers predictions here: {live}.\n\n{paths}"

    def model_metadata(self) -> dict[str, Any]:
        try:
            model = self.batcher.current()
        except RequestError:
            return open_inference.model_metadata(self.model_name, None, None)
        return open_inference.model_metadata(self.model_name, model.version, model.schema)

    def version(self) -> int | None:
        """Return the pinned version, or None."""
        return self.batcher.pinned

    def _ready(self, reply: Reply, named: dict[str, str]) -> None:
        try:
            self.batcher.current()
        except RequestError as refusal:
            reply(refusal.status, orjson.dumps({**named, "ready": False, "error": refusal.sentence}))
        else:
            reply(200, orjson.dumps({**named, "ready": True}))

    # -- predictions

    def _inference(self, request: Request, reply: Reply, _version: str | None) -> None:
        def parse(schema: Schema) -> Instances:
            body, slots = self._decoded(request), schema.of_feasigns()
            return self._read(body, slots) or elasticctr_json.parse_inference(body, slots, self.max_instances)

        def answered(probabilities: Floats, _version: int, places: Lengths | None) -> tuple[bytes, bytes]:
            return elasticctr_json.inference_answer(probabilities, places), JSON_TYPE

        self._predict(request, parse, answered, elasticctr_json.inference_refusal, reply)

    def _decoded(self, request: Request) -> bytes:
        """Return the body without its content coding. Raises RequestError, also if it is larger than a body may be."""
        body = request.body
        if not request.encoding:
            return body
        # Many programs send raw deflate, without zlib's header.
        bits = 31 if request.encoding == "gzip" else 15 if body and body[0] & 15 == zlib.DEFLATED else -15
        decoder = zlib.decompressobj(bits)
        most = min(self._max_body_bytes, max(MOST_UNPACKED * len(body), FREELY_UNPACKED))
        try:
            data = decoder.decompress(body, most + 1)
        except zlib.error as wrong:
            raise BadRequest(f"the body is not {request.encoding}: {wrong}") from None
        if len(data) > most:
            bound = "maxBodyBytes" if most == self._max_body_bytes else f"{MOST_UNPACKED} times its packed size"
            raise RequestError(
                413, f"the body has more than {most} bytes when it is unpacked ({bound}); send several requests"
            )
        if not decoder.eof or decoder.unused_data:
            raise BadRequest(f"the body is not {request.encoding}: it is cut, or something stands behind it")
        return data

    def _read(self, body: bytes, slots: SlotList) -> Instances | None:
        known = self._of_thread.__dict__
        if known.get("slots") is not slots:
            known["slots"], known["scanner"] = slots, Scanner(slots, self.max_instances)
        scanner: Scanner = known["scanner"]
        return scanner.read(body) or scanner.read_candidates(body)

    def _read_rows(self, body: bytes, schema: Schema) -> Instances | None:
        if schema.transformer is None:
            return None
        known = self._of_thread.__dict__
        if known.get("schema") is not schema:
            known["schema"] = schema
            known["rows"] = RowScanner(schema.transformer.inputs, self.max_instances, skips=schema.ignores_unknown)
        scanner: RowScanner = known["rows"]
        cells = scanner.read(body)
        if cells is not None:
            return rows_json.instances_of_cells(cells, schema.transformer, "instances")
        candidates = scanner.read_candidates(body)
        return None if candidates is None else rows_json.instances_of_candidates(candidates, schema.transformer)

    def _infer(self, request: Request, reply: Reply, asked: str | None) -> None:
        parsed: list[open_inference.Inference] = []

        def parse(schema: Schema) -> Instances:
            if not parsed:
                most = max(self.max_instances, MAX_ELEMENTS)
                parsed.append(open_inference.parse_infer(self._decoded(request), request.json_length, most))
            return parsed[0].instances(schema, self.max_instances)

        def answered(probabilities: Floats, version: int, places: Lengths | None) -> tuple[bytes, bytes]:
            if asked not in (None, str(version)):
                raise RequestError(404, self._not_live(asked or ""))
            body, json_length = open_inference.infer_answer(parsed[0], self.model_name, probabilities, version, places)
            if json_length is None:
                return body, JSON_TYPE
            return body, _BINARY_TYPE + b"inference-header-content-length: %d\r\n" % json_length

        only_live = asked is not None
        self._predict(
            request, parse, answered, lambda refusal: error_body(refusal.sentence), reply, only_live=only_live
        )

    def _rows(self, request: Request, reply: Reply, _version: str | None) -> None:
        def parse(schema: Schema) -> Instances:
            body = self._decoded(request)
            return self._read_rows(body, schema) or rows_json.parse_rows(body, schema, self.max_instances)

        def answered(probabilities: Floats, version: int, places: Lengths | None) -> tuple[bytes, bytes]:
            return rows_json.rows_answer(probabilities, version, places), JSON_TYPE

        self._predict(request, parse, answered, lambda refusal: error_body(refusal.sentence), reply)

    def _explain(self, request: Request, reply: Reply, _version: str | None) -> None:
        read: list[Explanation] = []

        def parse(schema: Schema) -> Instances:
            if not read:
                read.append(Explanation(self._decoded(request)))
            return read[0].instances(schema, self.max_instances)

        def answered(probabilities: Floats, version: int, _places: Lengths | None) -> tuple[bytes, bytes]:
            model = self.batcher.versions.get(version)
            if model is None:
                raise RequestError(503, f"version {version} was unloaded meanwhile; ask again")
            return read[0].answer(probabilities, version, model.sparse_dim), JSON_TYPE

        # A small body becomes many instances, so a thread reads it.
        self._predict(
            request,
            parse,
            answered,
            lambda refusal: error_body((read[0].refusal(refusal) if read else refusal).sentence),
            reply,
            size=PARSED_INLINE + 1,
            only_live=True,
        )

    def _predict(
        self,
        request: Request,
        parse: Parse,
        answered: Answered,
        refused: Callable[[RequestError], bytes],
        reply: Reply,
        *,
        size: int | None = None,
        only_live: bool = False,
    ) -> None:
        """Answer a request. `size` replaces the size of its body in the choice between event loop and parser thread."""
        top, where = 0, "instances"

        def read(schema: Schema) -> Instances:
            nonlocal top, where
            instances = parse(schema)
            top = instances.top
            if instances.shared is not None:
                where = "candidates"
            return instances

        def done(outcome: Floats | Exception, version: int) -> None:
            if isinstance(outcome, NoProbability):
                outcome = NoProbability(outcome.row, outcome.version, where)
            if isinstance(outcome, Exception):
                refusal = request_error_of(outcome)
                reply(refusal.status, refused(refusal))
                return
            places = best_places(outcome, top) if top else None
            try:
                body, headers = answered(outcome if places is None else outcome[places], version, places)
            except RequestError as refusal:
                reply(refusal.status, refused(refusal))
            else:
                reply(200, body, headers)

        if size is None:
            # The size of a compressed body is unknown until it is decoded, so a thread does that.
            size = len(request.body) if not request.encoding else PARSED_INLINE + 1
        self.predict(size, read, done, only_live=only_live)

    def predict(self, size: int, parse: Parse, done: Done, *, only_live: bool = False) -> None:
        """Submit the instances that `parse` makes of a request of `size` bytes; `done` is called once. Never raises.

        `only_live`: the canary's rule does not apply to the request.
        """
        started = time.perf_counter()

        def timed(outcome: Floats | Exception, version: int) -> None:
            if isinstance(outcome, NoProbability):
                log.error("a request is refused: %s", outcome.sentence)
                self.counters.totals["requests_without_probability"] += 1
            if not isinstance(outcome, Exception):
                self.counters.histograms["request_seconds"].observe(time.perf_counter() - started)
            done(outcome, version)

        def submit(instances: Instances) -> None:
            version = None if only_live else self.batcher.canary.version_for(instances, schema)
            self.batcher.submit(parse, instances, schema, timed, version)

        try:
            schema = self.batcher.current().schema
            if size <= PARSED_INLINE:
                submit(parse(schema))
                return
        except Exception as error:  # noqa: BLE001 (whatever it is, the client gets its answer)
            done(error, 0)
            return

        def parsed(future: asyncio.Future[Instances]) -> None:
            self._under_way.discard(future)
            # The error is not raised here: its traceback would refer to this frame, the frame to the future, the future to the error,
            # and this cycle would keep the request's body and values until the garbage collector runs.
            if (refused := future.exception()) is not None:
                done(refused if isinstance(refused, Exception) else RuntimeError(repr(refused)), 0)
                return
            try:
                submit(future.result())
            except Exception as error:  # noqa: BLE001 (as above)
                done(error, 0)

        parsing = asyncio.get_running_loop().run_in_executor(self._parser, parse, schema)
        self._under_way.add(parsing)
        parsing.add_done_callback(parsed)


def error_body(sentence: str) -> bytes:
    return orjson.dumps({"error": sentence})
