"""Files of rows to cells: one module per kind of file, behind `rows.rows_in_range`."""
