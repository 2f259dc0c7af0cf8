from pathlib import Path

from manual_metrics import in_the_manual, on_the_page
from sources.intake.desk import desk, intake_file


def test_every_metric_of_the_intake_stands_in_the_manual_and_nothing_else(tmp_path: Path) -> None:
    # No broker is there, and nothing of it is asked for.
    topic = {"source": {"url": "kafka://127.0.0.1:1/clicks"}}
    with desk(intake_file(tmp_path, topic)) as door:
        found = on_the_page("intake", door.client.get("/metrics").text)

    assert found == [line for line in in_the_manual() if line.startswith("| intake |")]
