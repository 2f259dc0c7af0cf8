"""Predictions that are asked for one after the other beside a stream, in a process of their own: what the bench does besides, such as
drawing clicks, must not lie in their latency.
"""

import json
import multiprocessing
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httpx

from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import NotInStore, open_store
from elastic_ctr.store.versions import layout

PROBES = 16
MOST_DIFF = 1e-5
_PAUSE = 0.01


@dataclass(frozen=True)
class Asked:
    """One request, at these unix seconds: `wrong`, `refused` and `unanswered` say why it counts as such."""

    at: float
    took: float = 0.0
    version: int | None = None
    diff: float = 0.0
    wrong: str = ""
    refused: str = ""
    unanswered: str = ""


class Asker:
    """Asks, and compares each answer with the scores that its version was published with."""

    def __init__(self, serving: str, store_url: str, lines: list[str]) -> None:
        self._url = f"http://{serving}/v2/models/ctr/infer"
        self._store = open_store(StoreConfig(url=store_url))
        self._lines = lines
        self._expected: dict[str, float] = {}
        self._of = 0

    def ask(self, client: httpx.Client) -> Asked:
        lines = self._lines
        body = {"inputs": [{"name": "line", "datatype": "BYTES", "shape": [len(lines)], "data": lines}]}
        began = time.perf_counter()
        try:
            answer = client.post(self._url, json=body)
        except httpx.HTTPError as failed:
            return Asked(time.time(), unanswered=type(failed).__name__)
        took = time.perf_counter() - began
        now = time.time()
        if answer.status_code != httpx.codes.OK:
            return Asked(now, refused=f"{answer.status_code}: {answer.text[:200]}")
        outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
        versions = sorted(set(outputs["version"]))
        version = int(versions[-1])
        diff, wrong = 0.0, ""
        if version == self._of:
            diff, wrong = self._compare(dict(zip(lines, outputs["probability"], strict=True)), version)
        else:
            self._next(version)
        if len(versions) != 1:
            wrong = f"one answer of the versions {versions}"
        return Asked(now, took, version, diff, wrong)

    def _compare(self, scores: dict[str, float], version: int) -> tuple[float, str]:
        """The largest difference, and the sentence about one that is too large."""
        diffs = {line: abs(score - self._expected[line]) for line, score in scores.items()}
        for line, diff in diffs.items():
            # Not of a number that is none either.
            if not diff <= MOST_DIFF:
                published = self._expected[line]
                return (
                    diff,
                    f"version {version} answers {scores[line]} for {line!r}, and was published with {published}",
                )
        return max(diffs.values()), ""

    def _next(self, version: int) -> None:
        """From now on ask for the sample of this version."""
        try:
            text = self._store.get_bytes(layout.sample_file(version))
        except NotInStore:
            # The next answer is of a newer one.
            return
        sample = [json.loads(line) for line in text.splitlines()]
        self._expected = {each["line"]: each["published"] for each in sample[:PROBES]}
        self._lines, self._of = list(self._expected), version


class Prober:
    """What the requests of that process came to. `run` returns some time after `stop`."""

    def __init__(self, serving: str, store_url: str, lines: list[str]) -> None:
        self.first: dict[int, float] = {}
        self.asked = 0
        self.wrong: list[str] = []
        # (unix seconds, what) of requests that were refused with a status, and of those that had no answer, once one was answered.
        self.refused: list[tuple[float, str]] = []
        self.unanswered: list[tuple[float, str]] = []
        self.worst = 0.0
        self.latencies: list[tuple[float, float]] = []
        self._arguments = serving, store_url, lines
        self._spawn = multiprocessing.get_context("spawn")
        self._ours, self._theirs = self._spawn.Pipe()

    def run(self) -> None:
        process = self._spawn.Process(target=_ask_on, args=(self._theirs, *self._arguments), daemon=True)
        process.start()
        self._theirs.close()
        try:
            while True:
                self.take(self._ours.recv())
        except EOFError:
            process.join()

    def stop(self) -> None:
        try:
            self._ours.send(None)
        except BrokenPipeError:
            pass  # it has ended

    def take(self, one: Asked) -> None:
        if one.version is None:
            if self.asked and one.refused:
                self.refused.append((one.at, one.refused))
            elif self.asked:
                self.unanswered.append((one.at, one.unanswered))
            return
        self.asked += 1
        self.latencies.append((one.at, one.took))
        self.first.setdefault(one.version, one.at)
        self.worst = max(self.worst, one.diff)
        if one.wrong:
            self.wrong.append(one.wrong)


def _ask_on(parent: Connection, serving: str, store_url: str, lines: list[str]) -> None:
    """Until the other end says something, or is closed."""
    asker = Asker(serving, store_url, lines)
    with httpx.Client(trust_env=False, timeout=10) as client:
        while not parent.poll(_PAUSE):
            parent.send(asker.ask(client))
    with suppress(EOFError):
        # What is left unread at the end is a reset for the other end.
        parent.recv()
