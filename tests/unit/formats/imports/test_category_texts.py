"""Texts of categories that JSON programs would send as something else."""

import pytest

from elastic_ctr.formats.imports.cell_texts import note_of_texts

START = "the column 'x' is read as text, and a request must send its texts as they are: "
NUMBERS = "; if it holds numbers, make it numeric or give it `round`."


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["7.0", "8.0"], f"{START}'7.0' in quotes, not 7{NUMBERS}"),
        (["7", "12.50"], f"{START}'12.50' in quotes, not 12.5{NUMBERS}"),
        (["1.10", ".5"], f"{START}'1.10' in quotes, not 1.1{NUMBERS}"),
        (["1e3"], f"{START}'1e3' in quotes, not 1000{NUMBERS}"),
        (["true", "TRUE"], f"{START}'TRUE' in quotes, not true."),
        (["true", "false"], None),
        (["7", "-8", "007"], None),
        (["3.5.1", "3.5"], None),
        (["1.5", "True"], None),
        (["u1"], None),
        ([], None),
    ],
)
def test_texts_that_json_would_send_as_numbers_or_truth_values_have_a_note(texts: list[str], note: str | None) -> None:
    assert note_of_texts("x", texts) == note
