import numpy as np

from elastic_ctr.jobs.scoring.quality import QualityCounter
from elastic_ctr.jobs.scoring.records import BlockPosition, split_unscored
from jobs.scoring.test_records import OF_ROWS, blocks, data_of

ROWS = b'{"user": "a", "price": 1, "click": 1}\n{"click": 2}\n{"user": "b", "price": 9e4, "click": 0}\n{"user": "c", "click": 0}\n'


def test_a_row_without_a_probability_is_refused_by_its_place_and_its_largest_number_and_the_others_are_scored() -> None:
    [records] = blocks(data_of("jsonl", label="click"), ROWS, copied=("user",))

    kept, probabilities = split_unscored(
        records, np.array([0.25, np.nan, 0.5], np.float32), BlockPosition("20200401/00/part-0", 0, 100), OF_ROWS
    )

    assert probabilities.tolist() == [0.25, 0.5]
    assert (kept.rows, kept.places.tolist(), kept.clicks.tolist(), kept.copied) == (4, [0, 3], [1, 0], (["a", "c"],))
    assert kept.instances.rows == 2
    assert kept.instances.feasigns.tolist() == [
        *records.instances.part(0, 1).feasigns.tolist(),
        *records.instances.part(2, 3).feasigns.tolist(),
    ]
    [label, unscored] = kept.refused
    assert (label.place, unscored.place, unscored.reason.value) == (1, 2, "no_probability")
    assert unscored.detail.startswith(
        "row 103 of 20200401/00/part-0 has no probability: the network answers what is no"
    )
    assert "of the feature 'price'" in unscored.detail
    QualityCounter().add(probabilities, kept.shows, kept.clicks)


def test_a_block_whose_rows_are_all_scored_is_as_it_was() -> None:
    [records] = blocks(data_of("jsonl", label="click"), ROWS)
    found = np.array([0.25, 0.5, 0.5], np.float32)

    kept, probabilities = split_unscored(records, found, BlockPosition("part-0", 7, 0), OF_ROWS)

    assert kept is records
    assert probabilities is found
