"""A table of results: text for people, numbers for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """What a table says.

    Attributes:
      title: What was simulated.
      header: Names of the columns.
      rows: Cells as text, the first of each row its name.
      numbers: The numbers for JSON.
      notes: What to keep in mind, one sentence each.
    """

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Returns the table as aligned text."""
        lines = [list(self.header), *(list(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        body = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        body.insert(1, "-" * max(len(line) for line in body))
        return "\n".join([self.title, "", *body, *(["", *self.notes] if self.notes else [])])
