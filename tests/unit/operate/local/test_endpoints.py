import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from answering import pages, saying
from elastic_ctr.operate.local.endpoints import ROLES, EndpointUnavailable, ask, predict, role_status
from operate.cli.answers import answers, master, transfer


class Page(http.server.BaseHTTPRequestHandler):
    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        answers = {
            "/status?all=1": (200, b'{"a": 1}'),
            "/refused": (409, b'{"error": "version 7 is not held"}'),
            "/broken": (500, b"<html>"),
        }
        self._answer(*answers.get(self.path, (200, b"not json")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        lines = body["inputs"][0]["data"]
        assert body["inputs"][0]["shape"] == [len(lines)]
        outputs = [
            {"name": "probability", "data": [0.5] * len(lines)},
            {"name": "version", "data": [7] * len(lines)},
        ]
        self._answer(200, json.dumps({"outputs": outputs, "path": self.path}).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_question_with_its_query_is_answered_with_json(address: str) -> None:
    assert ask(f"http://{address}/status?all=1") == {"a": 1}


def test_a_refusal_is_raised_in_the_words_of_the_role(address: str) -> None:
    with pytest.raises(EndpointUnavailable, match="answers 409: version 7 is not held"):
        ask(f"http://{address}/refused")


def test_an_answer_that_is_no_json_is_unavailable(address: str) -> None:
    with pytest.raises(EndpointUnavailable, match="answers 500: <html>"):
        ask(f"http://{address}/broken")
    with pytest.raises(EndpointUnavailable, match="does not answer as it should"):
        ask(f"http://{address}/other")


def test_an_address_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(EndpointUnavailable, match=r"http://127\.0\.0\.1:1/status does not answer: "):
        ask("http://127.0.0.1:1/status")


def test_lines_are_predicted_with_the_version_that_answered(address: str) -> None:
    assert predict(address, "ctr", ["1:a", "2:a"]) == ([0.5, 0.5], [7, 7])


def the_sentence_on(kind: str, answer: object) -> str:
    with saying(pages({"/status": answer})) as at, pytest.raises(EndpointUnavailable) as wrong:
        role_status(ROLES[kind], at)
    return str(wrong.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"waitsFor": None}, "waitsFor"), ({"passes": 7}, "passes"), ({"ledger": {"files": None}}, "ledger.files")],
)
def test_the_document_of_another_release_is_reported_with_the_field_that_it_has_otherwise(
    changes: dict[str, object], field: str
) -> None:
    sentence = the_sentence_on("master", master(**changes))

    assert f"/status is not one that this release can show: {field}: " in sentence
    assert sentence.endswith("; are both of one release?")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("other", ["master", "transfer", "serving", "list", "nothing"])
def test_the_answer_of_another_role_is_reported_with_the_role_that_was_expected(role: str, other: str) -> None:
    found = {**answers(), "list": [], "nothing": None}

    if role == other:
        with saying(pages({"/status": found[other]})) as at:
            assert isinstance(role_status(ROLES[role], at), ROLES[role])
    else:
        assert the_sentence_on(role, found[other]).endswith(
            f"/status is not {role}'s; give the address of its status endpoint"
        )


def test_another_role_is_recognised_though_a_field_of_one_name_has_another_type() -> None:
    assert "/status is not master's" in the_sentence_on("master", transfer(generation=None))
