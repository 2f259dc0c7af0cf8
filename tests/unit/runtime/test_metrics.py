from elastic_ctr.runtime.metrics import Metrics


def test_two_roles_in_one_process_do_not_mix() -> None:
    one, other = Metrics("cube-agent"), Metrics("cube-transfer")
    one.counter("loads", "Loads.").inc(3)
    other.gauge("live_version", "Id.", ("shard",)).labels("0").set(7)

    assert b"elastic_ctr_cube_agent_loads_total 3.0" in one.render()
    assert b"live_version" not in one.render()
    assert b'elastic_ctr_cube_transfer_live_version{shard="0"} 7.0' in other.render()


def test_a_histogram_counts_into_its_buckets() -> None:
    metrics = Metrics("serving")

    metrics.histogram("seconds", "Seconds.", buckets=(1.0, 2.0)).observe(1.5)

    assert b'elastic_ctr_serving_seconds_bucket{le="2.0"} 1.0' in metrics.render()
