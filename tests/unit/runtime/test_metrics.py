from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from elastic_ctr.runtime.metrics import Metrics


def test_two_roles_in_one_process_do_not_mix() -> None:
    one, other = Metrics("cube-builder"), Metrics("cube-transfer")
    one.counter_of("loads", "Loads.", lambda: 3)
    other.gauge("live_version", "Id.", ("shard",)).labels("0").set(7)

    assert b"elastic_ctr_cube_builder_loads_total 3.0" in one.render()[0]
    assert b"live_version" not in one.render()[0]
    assert b'elastic_ctr_cube_transfer_live_version{shard="0"} 7.0' in other.render()[0]


def test_every_role_says_which_build_it_is_and_what_its_process_uses() -> None:
    text, _ = Metrics("master").render()

    assert b"elastic_ctr_build_info{" in text
    assert b'role="master"' in text
    assert b"process_resident_memory_bytes " in text


def test_a_scraper_that_accepts_openmetrics_gets_it() -> None:
    metrics = Metrics("master")
    metrics.counter_of("looks", "Looks.", lambda: 3)

    _, plain = metrics.render("text/plain")
    text, content_type = metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    read: Any = text_string_to_metric_families
    families = {family.name: family for family in read(text.decode())}

    assert plain.startswith("text/plain")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert families["elastic_ctr_master_looks"].type == "counter"
    assert [sample.value for sample in families["elastic_ctr_master_looks"].samples] == [3.0]
