"""Files of rows to cells: one module a kind of file, behind `rows.rows_in_range`."""
