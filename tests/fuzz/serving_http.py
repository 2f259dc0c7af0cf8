"""HTTP as serving's native frontend takes it, with a real batcher and the fallback frontend behind it."""

import asyncio
import json
import math
import re
from functools import partial

import numpy as np

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.machine_code.compiled import anew_if_stale
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.client import JSON_LENGTH, prediction_of, tensor_request
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend, Limits
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend, NativeLimits
from elastic_ctr.serving.routes import SOURCE_PATH, Routes
from fuzz.model import SLOTS, Behind, InPython
from fuzz.mutation import Mutator

_REPLY = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n(?:[^\r\n]+\r\n)*?content-length: (\d+)\r\n(?:[^\r\n]+\r\n)*\r\n")
_JSON_LENGTH = re.compile(rb"\r\ninference-header-content-length: (\d+)\r\n")
INFER_PATH = "/v2/models/ctr/infer"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_OFFER = b"connection: upgrade\r\nupgrade: websocket\r\n"
_SPLIT = (
    b"\r\n", b"\r\n\r\n", b"content-length: 7\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n", _OFFER
)  # fmt: skip
_OFFERS = (b"", _OFFER, b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n")


class ServingHttp:
    """Streams of requests, each on a connection of its own, in two pieces; everyday ones first, so that heads are known."""

    name = "serving-http"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)

    def batch(self, count: int) -> int:
        """How many inputs were answered with a prediction."""
        return asyncio.run(self._batch(count))

    async def _batch(self, count: int) -> int:
        model = Behind()
        service = Routes(model.batcher, model.counters, model.parser, model_name="ctr", version="0", max_instances=16)
        limits = Limits(max_body_bytes=4096, max_pipelined=4, max_pending_bodies=1 << 20)
        behind = HttpFrontend(service.handle, limits)
        door = anew_if_stale(partial(NativeHttpFrontend, service, behind, NativeLimits(max_rows=16)))
        async with model.listening(door) as address:
            answered = await self._talk(address, count)
        assert not behind.connections, "a connection that was moved was not closed"
        return answered

    async def _talk(self, address: str, count: int) -> int:
        streams = [self._stream() if number % 4 else self._whole() for number in range(count)]
        answers = await asyncio.gather(*(self._said(address, stream) for stream in streams))
        for number, (stream, answer) in enumerate(zip(streams, answers, strict=True)):
            found = _judge(stream, answer)
            assert number % 4 or found == _due(stream), f"{stream!r} is answered with {found}"
        return sum(b'"err_code":0}' in answer or b'"probability"' in answer for answer in answers)

    async def _said(self, address: str, stream: bytes) -> bytes:
        draw = self._mutator.random
        cut = draw.randrange(len(stream) + 1) if draw.random() < 0.3 else len(stream)
        reader, writer = await asyncio.open_unix_connection(address)
        try:
            for piece in (stream[:cut], stream[cut:]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write_eof()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def _stream(self) -> bytes:
        draw = self._mutator.random
        made = draw.choice((_request, _request, _tensors, _candidates, _shared_tensors))
        stream = b"".join(made(self._rows()) for _ in range(draw.randrange(1, 7)))
        if draw.random() < 0.2:
            at = draw.randrange(len(stream))
            stream = stream[:at] + draw.choice(_SPLIT) + stream[at:]
        return self._mutator.mutated(stream)

    def _whole(self) -> bytes:
        """Requests that are all answered with a prediction or 400: some offer another protocol, some hide another request."""
        draw = self._mutator.random
        stream = b""
        for _ in range(draw.randrange(1, 7)):
            hidden = draw.random() < 0.3
            head, _, body = _request([{}]).partition(b"\r\n\r\n")
            body = _HIDDEN if hidden else body
            line = _REFUSED if hidden else head.split(b"\r\n")[0] + b"\r\n"
            stream += line + b"host: a\r\n" + draw.choice(_OFFERS)
            if draw.random() < 0.5:
                stream += b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            else:
                stream += b"content-length: %d\r\n\r\n%b" % (len(body), body)
        return stream + b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(_HIDDEN), _HIDDEN)

    def _rows(self) -> list[dict[str, list[int]]]:
        draw = self._mutator.random
        return [
            {slot: [draw.getrandbits(16) for _ in range(draw.randrange(4))] for slot in SLOTS if draw.random() < 0.9}
            for _ in range(draw.choice((1, 1, 2, 16, 17)))
        ]


class ServingRows:
    """As ServingHttp, of a model of rows. What is answered is what the frontend in Python answers to the same bytes."""

    name = "serving-rows"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        features = {
            "user": {"type": "categorical"},
            "tags": {"type": "categorical", "separator": "|"},
            "price": {"type": "numeric", "transform": ["log1p"], "missing": 0},
        }
        transformer = transformer_of(Features.model_validate(features), None)
        self._schema = Schema(transformer.slots, transformer, "rows")

    def batch(self, count: int) -> int:
        """How many inputs were answered with a prediction."""
        return asyncio.run(self._batch(count))

    async def _batch(self, count: int) -> int:
        streams = [self._stream() for _ in range(count)]
        answers = []
        for native in (True, False):
            model = Behind(self._schema)
            service = Routes(
                model.batcher, model.counters, model.parser, model_name="ctr", version="0", max_instances=16
            )
            limits = Limits(max_body_bytes=4096, max_pipelined=4, max_pending_bodies=1 << 20)
            behind = HttpFrontend(service.handle, limits)
            native_http = partial(NativeHttpFrontend, service, behind, NativeLimits(max_rows=16))
            door = anew_if_stale(native_http) if native else InPython(behind)
            async with model.listening(door) as address:
                answers.append(await asyncio.gather(*(_answer(address, stream) for stream in streams)))
            assert not behind.connections, "a connection that was moved was not closed"
        for stream, ours, theirs in zip(streams, *answers, strict=True):
            assert b"" in (ours, theirs) or ours == theirs, f"{stream!r} is answered with {ours!r}, not with {theirs!r}"
        return sum(b'"model_version":"7"}' in answer for answer in answers[0])

    def _stream(self) -> bytes:
        draw = self._mutator.random
        stream = b""
        for _ in range(draw.randrange(1, 5)):
            rows = [
                {
                    "user": draw.choice(("a", "größe", 7, None, True, 1.5)),
                    "tags": draw.choice((["a", "b"], [], "a|b", [1, None])),
                    "price": draw.choice((0, 3.25, draw.random(), None, "x")),
                }
                for _ in range(draw.choice((1, 1, 2, 16, 17)))
            ]
            document: dict[str, object] = {"instances": rows}
            if draw.random() < 0.5:
                columns = {name for name in rows[0] if draw.random() < 0.5}
                document = {
                    "shared": {name: value for name, value in rows[0].items() if name in columns},
                    "candidates": [{name: each for name, each in row.items() if name not in columns} for row in rows],
                    **({"top": draw.randrange(4)} if draw.random() < 0.5 else {}),
                }
            body = json.dumps(document, ensure_ascii=draw.random() < 0.2).encode()
            stream += b"POST /v1/models/ctr:predict HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
        return self._mutator.mutated(stream) if draw.random() < 0.7 else stream


async def _answer(address: str, stream: bytes) -> bytes:
    """Nothing where the connection was broken."""
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(stream)
        writer.write_eof()
        answer = await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
    return re.sub(rb"(?i:date: [^\r]*|connection: close)\r\n", b"", answer)


def _request(rows: list[dict[str, list[int]]]) -> bytes:
    return _posted({"instances": [_slots(row) for row in rows]})


def _candidates(rows: list[dict[str, list[int]]]) -> bytes:
    first, *others = _shared(rows)
    more = {"top": len(rows[0])} if len(rows) % 2 else {}
    return _posted({"shared": _slots(first), "candidates": [_slots(row) for row in others], **more})


def _shared(rows: list[dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """A row with the first one's slots but the last slot, and the rows without them."""
    shared = {name: keys for name, keys in rows[0].items() if name != SLOTS.names[-1]}
    return [shared, *({name: keys for name, keys in row.items() if name not in shared} for row in rows)]


def _slots(row: dict[str, list[int]]) -> dict[str, object]:
    return {"slots": [{"slot_name": name, "feasigns": keys} for name, keys in row.items()]}


def _posted(document: dict[str, object]) -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    return f"POST {SOURCE_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _shared_tensors(rows: list[dict[str, list[int]]]) -> bytes:
    return _tensors(_shared(rows), first_is_shared=True)


def _tensors(rows: list[dict[str, list[int]]], *, first_is_shared: bool = False) -> bytes:
    feasigns = np.array([key for row in rows for slot in SLOTS for key in row.get(slot, ())], np.uint64)
    lengths = np.array([[len(row.get(slot, ())) for slot in SLOTS] for row in rows])
    body, json_length = tensor_request(feasigns, lengths, SLOTS, first_is_shared=first_is_shared)
    head = (
        f"POST {INFER_PATH} HTTP/1.1\r\nhost: a\r\n{JSON_LENGTH}: {json_length}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nhost: hidden\r\n\r\n"
_REFUSED = f"POST {SOURCE_PATH}?hidden HTTP/1.1\r\n".encode()


def _due(stream: bytes) -> list[int]:
    """One answer to each request of `_whole`, and none to what stands in a body."""
    lines = re.findall(rb"POST [^ ]* HTTP/1\.1\r\n", stream)
    return [400 if line == _REFUSED else 200 for line in lines] + [400]


def _judge(stream: bytes, answer: bytes) -> list[int]:
    """The statuses of whole replies; who says probabilities says those of bodies that stand in the stream, in their order."""
    sums = _bodies(stream)
    at = place = 0
    statuses = []
    while at < len(answer):
        if answer.startswith(_CONTINUE, at):
            at += len(_CONTINUE)
            continue
        found = _REPLY.match(answer, at)
        assert found is not None, f"{stream!r} is answered with {answer[at:]!r}"
        body = answer[found.end() : found.end() + int(found[2])]
        assert len(body) == int(found[2]), f"{stream!r} is answered with a piece: {answer[at:]!r}"
        at = found.end() + len(body)
        statuses.append(int(found[1]))
        tensors = _JSON_LENGTH.search(found[0])
        if tensors is not None:
            answer_found = prediction_of(body, int(tensors[1]))
            assert len(body) == int(tensors[1]) + 4 * len(answer_found.probabilities)
            continue
        predictions = json.loads(body).get("predictions") if found[1] == b"200" else None
        if predictions is not None:
            values = [each["prob1"] for each in predictions]
            while place < len(sums) and not _near(values, sums[place]):
                place += 1
            assert place < len(sums), f"{stream!r} is answered with {values}"
            place += 1
    return statuses


def _near(values: list[float], sums: list[float]) -> bool:
    return len(values) == len(sums) and all(
        math.isclose(*each, rel_tol=1e-5) for each in zip(values, sums, strict=True)
    )


def _bodies(stream: bytes) -> list[list[float]]:
    """What the instances of each JSON document in the stream sum up to."""
    text = stream.decode("latin-1")
    documents = (_sums(text, each.start()) for each in re.finditer(r"\{\s*\"(?:instances|shared)\"", text))
    return [each for each in documents if each is not None]


def _sum(instance: dict[str, list[dict[str, list[int]]]]) -> float:
    return float(sum(key % 2**64 for slot in instance["slots"] for key in slot["feasigns"]))


def _sums(text: str, begin: int) -> list[float] | None:
    try:
        document = json.JSONDecoder().raw_decode(text, begin)[0]
        shared, *found = map(
            _sum,
            [
                document.get("shared", {"slots": []}),
                *(document["candidates"] if "candidates" in document else document["instances"]),
            ],
        )
        sums = [shared + each for each in found]
        return sorted(sums, reverse=True)[: document["top"]] if "top" in document else sums
    except (ValueError, KeyError, TypeError):
        return None
