"""A table as a paper would print it: a caption with units and n, and text cells."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_sara.summary.table import markdown

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; the first column is text, the others are numbers.

    Attributes:
      caption: What is shown, with units and n.
      head: Names of the columns.
      rows: Cells, as many in each row as in the head.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """Returns it as Markdown, the caption below."""
        escaped = [[markdown_text(cell).replace("|", "\\|") for cell in row] for row in (self.head, *self.rows)]
        return f"{markdown(escaped[0], escaped[1:])}\n*{markdown_text(self.caption)}*\n"

    def latex(self) -> str:
        """Returns it as a LaTeX table environment with booktabs rules."""
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in (self.head, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_latex(self.caption)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def html(self) -> str:
        """Returns it as an HTML table, every text escaped."""

        def cells(row: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

        body = "\n".join(cells(row, "td") for row in self.rows)
        return (
            f'<div class="wide"><table>\n<thead>{cells(self.head, "th")}</thead>\n'
            f'<tbody>\n{body}\n</tbody></table></div>\n<p class="caption">{html.escape(self.caption)}</p>'
        )

    def _repr_html_(self) -> str:
        """Shows it in a notebook."""
        return self.html()


def markdown_text(text: str) -> str:
    """Returns a text that Markdown shows as it is: no HTML, no link or image, no code, one line."""
    for letter, shown in (("&", "&amp;"), ("<", "&lt;"), ("`", "\\`"), ("](", "]\\(")):
        text = text.replace(letter, shown)
    return " ".join(text.split())


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
