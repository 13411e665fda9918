"""One HTML file that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
  --rule: #d5dae0; --bar: #3573b9; --total: #6b7682; --range: #e3f0e3; --band: #3573b93d;
  --mark: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a3acb7; --paper: #14181d;
  --rule: #363d46; --bar: #6ca7e8; --total: #8b96a3; --range: #1d3324; --band: #6ca7e83d;
  --mark: #ff8f85; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.verdict { font-weight: 600; }
.bad { color: var(--mark); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem;
  margin: 1rem 0; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
dd small { display: block; font-size: .85rem; font-weight: 400; color: var(--soft); }
svg { display: block; width: 100%; height: auto; margin: .6rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: 1; }
.bar { fill: var(--bar); }
.bar.total { fill: var(--total); }
.interval { stroke: var(--ink); stroke-width: 1.5; }
.mark { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 5 3; }
.range { fill: var(--range); }
.band { fill: var(--band); }
.curve { stroke: var(--bar); stroke-width: 2; }
.dot { fill: var(--bar); }
.dot.chosen { fill: var(--paper); stroke: var(--bar); stroke-width: 2.5; }
line.chosen { stroke: var(--soft); stroke-dasharray: 2 3; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--rule); padding: .25rem .8rem .25rem 0; text-align: left;
  vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
summary { cursor: pointer; color: var(--soft); }
li { overflow-wrap: anywhere; }
"""


def page(title: str, sections: Sequence[str]) -> str:
    """The document; sections are HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A heading and what stands below it, which is HTML already."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n" + "\n".join(parts) + "\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """One, of plain text."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def facts(rows: Sequence[tuple[str, str, str]]) -> str:
    """Name, number and what stands small below it."""
    return (
        "<dl>"
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
            + (f"<small>{escape(below)}</small>" if below else "")
            + "</dd></div>"
            for name, value, below in rows
        )
        + "</dl>"
    )


def bullets(lines: Sequence[str]) -> str:
    """A list of plain text."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], n_words: int = 1) -> str:
    """The first columns are words, all others numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ("" if i < n_words else "number" for i in range(len(row)))
        return "".join(
            f"<{tag}{_class(kind)}>{escape(text)}</{tag}>"
            for kind, text in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", columns)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def behind(plot: str, numbers: str) -> str:
    """A plot, and the table it was drawn from."""
    return f"{plot}\n<details><summary>the numbers as a table</summary>{numbers}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
