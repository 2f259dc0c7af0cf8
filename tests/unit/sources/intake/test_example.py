"""The example of docs/streams/http.md, as a shell runs it."""

import json
import re
import subprocess
from pathlib import Path

from needs import program
from sources.intake.desk import TOKEN, desk, intake_file

PAGE = Path(__file__).parents[4] / "docs" / "streams" / "http.md"


def test_the_example_of_the_documents_appends_its_lines(tmp_path: Path) -> None:
    program("curl")
    [command, answer] = re.findall(
        r"^```sh\n(curl .*?)```\n\n```json\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )[0]
    (tmp_path / "elastic-ctr-local" / "tokens").mkdir(parents=True)
    (tmp_path / "elastic-ctr-local" / "tokens" / "clicks").write_text(f"local {TOKEN}\n")
    (tmp_path / "clicks.txt").write_text("1 0 5:0 6:1\n1 1 5:0 7:1\n")

    with desk(intake_file(tmp_path / "log")) as door:
        # It is the address, and a key, that are the user's own.
        line = command.replace("127.0.0.1:8310", door.netloc).replace("$(uuidgen)", "one-key")
        said = [
            json.loads(subprocess.check_output(["bash", "-ec", line], cwd=tmp_path, text=True, timeout=60))
            for _ in range(2)
        ]
        log = door.client.get("/v1/log/lines", params={"start": 0, "stop": 2}).text

        # The log's own name is the only thing that differs.
        wanted = {**json.loads(answer), "partition": door.partition}

    assert said == [wanted, {**wanted, "repeated": True}]
    assert log == (tmp_path / "clicks.txt").read_text()
