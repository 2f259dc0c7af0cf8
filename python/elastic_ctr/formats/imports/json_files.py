"""Files of JSON lines."""

from __future__ import annotations

from pathlib import Path

from elastic_ctr.formats.imports.importers import Rows
from elastic_ctr.formats.imports.record_files import RecordImport, json_records
from elastic_ctr.formats.imports.text_files import lines_of_file, without_last_empty


class JsonImport(RecordImport):
    """One import; a line is kept as it is if its label is 0, 1, true or false."""

    def file_rows(self, path: Path) -> Rows:
        """As Importer.file_rows."""
        return self.rows(
            json_records(without_last_empty(lines_of_file(path, self._form.encoding)), str(path)), str(path)
        )
