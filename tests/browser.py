"""A headless Chromium, driven through a pipe by the Chrome DevTools Protocol: no port, no driver program."""

import base64
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needs import program

# Commands on descriptor 3, answers and events on 4: JSON that ends with a zero byte.
_PIPES = 'exec "$@" 3<&"$COMMANDS" 4>&"$ANSWERS"'
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One page. `events` are those of Chromium's own domains, in order."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            found = os.read(self._answers, 1 << 20)
            if not found:
                raise AssertionError("Chromium has ended")
            self._buffer += found
        message, _, self._buffer = self._buffer.partition(b"\0")
        document: dict[str, Any] = json.loads(message)
        return document

    def open(self, page: Path | str) -> None:
        """Until a file or an address is loaded; the events are those of this page alone."""
        self.events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def show(self, width: int, *, scheme: str = "light", media: str = "screen") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def evaluate(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, file: Path) -> None:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000), "scale": 1}
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = (each for each in self.events if each.get("method") == "Network.requestWillBeSent")
        return [each["params"]["request"]["url"] for each in sent]

    def complaints(self) -> list[str]:
        """Of the console, of scripts, of the policy."""
        methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(each["params"]) for each in self.events if each.get("method") in methods]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Skips the test where there is no Chromium. Its profile goes to a folder of the test."""
    command = [program("chromium"), *_OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    environment = {**os.environ, "COMMANDS": str(read_commands), "ANSWERS": str(write_answers), "HOME": str(folder)}
    process = subprocess.Popen(
        ["bash", "-c", _PIPES, "bash", *command],
        pass_fds=(read_commands, write_answers),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Browser(commands, answers)
    finally:
        # Chromium ends with the pipe.
        os.close(commands)
        os.close(answers)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
