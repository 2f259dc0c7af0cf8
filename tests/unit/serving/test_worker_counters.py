from elastic_ctr.serving.worker_counters import Counters, Histogram


def test_a_quantile_is_the_bound_below_which_that_share_lies() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 0.7, 1.5, 3.0, 100.0):
        histogram.observe(value)

    assert histogram.counts == [2, 1, 1, 1]
    assert [histogram.quantile(share) for share in (0.4, 0.5, 0.8, 0.99)] == [1.0, 2.0, 4.0, None]
    assert Histogram((1.0,)).quantile(0.5) is None


def test_sums_of_snapshots_are_sums_of_what_was_counted() -> None:
    first, second, sums = Counters(), Counters(), Counters()
    first.requests["open_inference", 200] += 2
    second.requests["open_inference", 200] += 3
    second.requests["open_inference", 400] += 1
    first.totals["rows"] += 7
    first.histograms["request_seconds"].observe(0.001)
    second.histograms["request_seconds"].observe(2)

    sums.add(first.snapshot())
    sums.add(second.snapshot())

    assert sums.requests == {("open_inference", 200): 5, ("open_inference", 400): 1}
    assert sums.totals["rows"] == 7
    assert sum(sums.histograms["request_seconds"].counts) == 2
