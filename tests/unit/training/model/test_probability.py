import math

import numpy as np

from elastic_ctr.training.model.probability import GREATEST, LEAST, complement, inside


def test_a_probability_lies_between_0_and_1_in_float32_and_its_logit_is_finite() -> None:
    given = np.array([0, 1e-45, 1e-38, 0.25, 1 - 2**-24, 1], np.float32)

    found = inside(given)

    assert found.dtype == np.float32
    assert found.tolist() == [LEAST, LEAST, LEAST, 0.25, GREATEST, GREATEST]
    assert all(0 < each < 1 and math.isfinite(math.log(each / (1 - each))) for each in found.tolist())


def test_a_probability_that_is_not_a_number_stays_so() -> None:
    assert np.isnan(inside(np.array([np.nan], np.float32))).all()


def test_the_complement_of_the_least_probability_is_below_1() -> None:
    assert complement(np.array([LEAST, 0.25, GREATEST], np.float64)).tolist() == [1 - 2**-53, 0.75, 2**-24]
