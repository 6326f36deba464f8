"""Writes a report as Markdown with PNG files, and as one HTML page that holds everything."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from verl_sara.report.sections import Section
from verl_sara.report.table import Table, markdown_text

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1.5rem; }
.question { font-style: italic; } figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; }
figcaption, .caption { color: #444; font-size: .9rem; margin: .4rem 0 1.5rem; }
.wide { overflow-x: auto; margin: 1.5rem 0 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd;
  font-size: .9rem; }
th { border-bottom: 2px solid #666; } td:first-child, th:first-child { text-align: left; }
td { white-space: nowrap; } #overview td { white-space: pre; }
#overview td:first-child, #overview th:first-child { white-space: normal; min-width: 9rem;
  position: sticky; left: 0; background: #fff; }
 .notes td { white-space: normal; text-align: left; }
"""


def write_page(out: Path, title: str, lead: Sequence[str], sections: Sequence[Section], notes: Table | None) -> Path:
    """Writes `report.md`, `report.html` and the PNG files under `out`; returns the HTML file."""
    out.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for picture in section.pictures:
            (out / f"{picture.name}.png").write_bytes(picture.png)
    (out / "report.md").write_text(_markdown(title, lead, sections, notes), encoding="utf-8")
    page = out / "report.html"
    page.write_text(_html(title, lead, sections, notes), encoding="utf-8")
    return page


def _markdown(title: str, lead: Sequence[str], sections: Sequence[Section], notes: Table | None) -> str:
    parts = [f"# {title}", *map(markdown_text, lead)]
    for section in sections:
        parts += [f"## {section.title}", f"*{section.question}*"]
        parts += [f"![{picture.caption}]({picture.name}.png)" for picture in section.pictures]
        parts += [table.markdown() for table in section.tables if table.rows]
    if notes:
        parts += ["## Problems found while reading", notes.markdown()]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _html(title: str, lead: Sequence[str], sections: Sequence[Section], notes: Table | None) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in lead)]
    for section in sections:
        parts.append(f'<section id="{html.escape(section.name)}"><h2>{html.escape(section.title)}</h2>')
        parts.append(f'<p class="question">{html.escape(section.question)}</p>')
        for picture in section.pictures:
            data, caption = base64.b64encode(picture.png).decode("ascii"), html.escape(picture.caption)
            parts.append(
                f'<figure><img src="data:image/png;base64,{data}" alt="{caption}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        parts += [table.html() for table in section.tables if table.rows]
        parts.append("</section>")
    if notes:
        parts.append(f'<h2>Problems found while reading</h2><div class="notes">{notes.html()}</div>')
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
