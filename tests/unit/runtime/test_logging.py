import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from elastic_ctr.runtime.logging import LogFormat, configure


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: LogFormat) -> str:
    out = io.StringIO()
    configure("cube-transfer", log_format=log_format, stream=out)
    log = logging.getLogger("some.module")
    log.info("version %s is live", 7)
    log.debug("not shown")
    try:
        int("two\nlines")
    except ValueError:
        log.exception("failed")
    return out.getvalue()


@pytest.mark.usefixtures("restored")
def test_an_event_is_one_line_with_utc_time_level_role_and_message() -> None:
    first, second = logged("text").splitlines()

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    cube-transfer version 7 is live", first)
    assert "ERROR" in second
    assert "ValueError: invalid literal" in second


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", ["elastic_ctr.training.trainer.process", "__main__"])
def test_a_library_that_sets_the_roots_level_does_not_silence_us(name: str) -> None:
    out = io.StringIO()
    configure("trainer", stream=out)

    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(name).info("trainer 3 works in generation 1")

    assert "trainer 3 works in generation 1" in out.getvalue()


@pytest.mark.usefixtures("restored")
def test_the_json_form_says_the_same() -> None:
    first, second = map(json.loads, logged("json").splitlines())

    assert first.keys() == {"time", "level", "role", "message"}
    assert (first["level"], first["role"], first["message"]) == ("INFO", "cube-transfer", "version 7 is live")
    assert "ValueError" in second["message"]


@pytest.mark.usefixtures("restored")
def test_a_poll_every_second_writes_nothing() -> None:
    out = io.StringIO()
    configure("cube-server", stream=out)

    logging.getLogger("httpx").info("HTTP Request: GET /release")

    assert out.getvalue() == ""
