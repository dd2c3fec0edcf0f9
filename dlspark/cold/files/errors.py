"""`DamagedColdFileError`: a cold file is not what was written, and where."""

from __future__ import annotations

from metadata.foundation.errors import CorruptDataError


class DamagedColdFileError(CorruptDataError):
    """A cold file is not what was written: nothing of the damaged part is returned (I12).

    `url` is the file, `row_group`, `column` and `page` (from 0) are where it is damaged, as far as that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str,
        row_group: int | None = None,
        column: str | None = None,
        page: int | None = None,
        dlsn: object | None = None,
        advice: str | None = None,
    ) -> None:
        places = (("row group", row_group), ("column", column), ("page", page))
        where = "".join(f", {name} {value}" for name, value in places if value is not None)
        super().__init__(
            f"a cold file is damaged{where}: {message}; nothing of that part was read",
            path=url,
            dlsn=dlsn,
            advice=advice
            or "Read it again; if it stays so, restore the object from a copy or an older version of it, and see what "
            "else is damaged with dlspark cold verify",
        )
        self.url = url
        self.row_group = row_group
        self.column = column
        self.page = page
