"""Tables of the rows in the sparse table: at each pserver after the last save, and over all saves."""

from elastic_ctr.operate.report.html import Html, element, joined, table
from elastic_ctr.operate.text_table import ROW_COUNTS, TextTable, columns, count, row_totals, rows_by_pserver
from elastic_ctr.runtime.status.master_status import TrainingStatus


def rows_of_table(training: TrainingStatus) -> Html:
    """Return the tables. Passes without a save, or saved by an earlier release, are left out."""
    saved = [each for each in reversed(training.passes) if each.table]
    if not saved:
        return element("p", "No save has counted the rows of the table yet.", class_="none")
    by_pass = TextTable(columns("pass", *ROW_COUNTS))
    for each in saved:
        by_pass.add(each.id, *map(count, row_totals(each.table or ())))
    note = "New: created since the save before. Expired: deleted by the shrink of a day end. Other saves delete no row."
    return joined(
        [
            table(f"Pservers, after the save of {saved[0].id}", rows_by_pserver(training, saved[0])),
            table("Rows after each save, newest first", by_pass),
            element("p", note, class_="none"),
        ]
    )
