"""The table of docs/architecture.md: each call takes the tokens of one right, and those of no other."""

import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from starlette.routing import Route

from elastic_ctr.cube.builder.build_server import builder_routes
from elastic_ctr.cube.server.cube_server import cube_app
from elastic_ctr.cube.transfer.transfer_api import transfer_app
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right, Token, Tokens
from elastic_ctr.runtime.http import application
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.sources.intake.intake_api import Intake, intake_app
from elastic_ctr.training.master.server import Master
from sources.intake.desk import intake_file

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
CALLS = {
    ("intake", "POST", "/v1/clicks"): Right.CLICKS,
    ("intake", "GET", "/v1/log"): Right.INTERNAL,
    ("intake", "GET", "/v1/log/lines"): Right.INTERNAL,
    ("intake", "POST", "/v1/log/needed"): Right.INTERNAL,
    ("master", "POST", "/retry"): Right.OPERATE,
    ("cube-transfer", "POST", "/rollback"): Right.OPERATE,
    ("cube-transfer", "POST", "/agents"): Right.INTERNAL,
    ("cube-transfer", "POST", "/readers"): Right.INTERNAL,
    ("cube-builder", "POST", "/build"): Right.INTERNAL,
    ("cube-server", "POST", "/drain"): Right.INTERNAL,
}


def app_of(role: str, access: Access, folder: Path) -> Any:
    """What it asks behind the check does not matter: only whether a caller gets there."""
    if role == "intake":
        return intake_app(Intake(intake_file(folder)), access)
    if role == "cube-transfer":
        return transfer_app(MagicMock(config=MagicMock(cube_domain=None)), access)
    if role == "cube-server":
        lookups = MagicMock(metrics=Metrics("cube"))
        return cube_app(lookups, MagicMock(cache=MagicMock(fetched_bytes=0)), MagicMock(), access)
    if role == "cube-builder":
        return application(builder_routes(MagicMock(), access), metrics=Metrics("cube-builder"))
    master = MagicMock(_access=access)
    return application([Route("/retry", partial(Master._retry, master), methods=["POST"])])


@pytest.mark.parametrize(
    ("call", "right"), CALLS.items(), ids=lambda each: " ".join(each) if isinstance(each, tuple) else each.value
)
async def test_a_call_takes_the_tokens_of_its_right_alone(
    call: tuple[str, str, str], right: Right, tmp_path: Path
) -> None:
    role, method, path = call
    tokens = {each: Tokens([Token("one", f"of-{each.value}")]) for each in Right}
    app = app_of(role, Access(tokens, AuditLog(role)), tmp_path)
    door = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    refused = set()
    async with httpx.AsyncClient(transport=door, base_url="http://role") as client:
        for each in (None, *(other for other in Right if other is not right)):
            answer = await client.request(method, path, headers={} if each is None else tokens[each].header())
            if answer.status_code == 401:
                refused.add(each)
        # A post of clicks that is taken waits for a writer, which is not there: an encoding that is not read is refused before.
        headers = {**tokens[right].header(), "content-encoding": "gzip"}
        taken = await client.request(method, path, headers=headers)

    assert refused == {None, *Right} - {right}
    assert taken.status_code != 401


def test_the_page_has_these_calls_and_no_others() -> None:
    rows = re.findall(r"^\| (intake|master|cube-[a-z]+).*? \| (.*?) \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    named = {
        (role, method, path, right)
        for role, calls, right in rows
        for method, path in re.findall(r"(GET|POST) (/[\w/]+)", calls)
    }

    assert named == {(*call, right.value) for call, right in CALLS.items()}
