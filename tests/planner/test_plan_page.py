"""`hotlap plan --html`: one page with its plots, looked at as a parser and as a browser see it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import Browser

from hotlap.cli import main
from hotlap.report import svg

GPT = "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50304 --seq 1024 --batch 256"
LARGE = "--layers 96 --hidden 12288 --heads 96 --ffn 49152 --vocab 51200 --seq 2048 --batch 1536"
HOW = "--precision bf16-master --optimizer adamw"
NODE = "--gpu h100-80gb --gpus 8 --gpus-per-node 8"
CLUSTER = "--gpu a100-80gb --gpus 512 --gpus-per-node 8 --interconnect 100"
TOO_LARGE = f"{LARGE} --micro-batch 1 --recompute none {HOW} {CLUSTER} --layout dp=512"
CASES = {
    "searched": f"{LARGE} {HOW} {CLUSTER} --tokens 300B --co2 50 --price 2",
    "small": f"{GPT} {HOW} {NODE}",
    "does not fit": TOO_LARGE,
    "one GPU": f"{GPT} {HOW} --gpu t4-16gb --gpus 1 --precision fp16",
    "a known rate": f"{GPT} {HOW} {NODE} --rate 100e12 --tokens 1B",
}
GIB = 2**30


class Page:
    """A page and the plan it was made from."""

    def __init__(self, words: str, folder: Path) -> None:
        self.path, document = folder / "plan.html", folder / "plan.json"
        files = ["--html", str(self.path), "--json", str(document)]
        assert main(["plan", *words.split(), *files]) == 0
        self.plan: dict[str, Any] = json.loads(document.read_text())
        self.text = self.path.read_text(encoding="utf-8")
        self.tables = Tables(self.text).found
        found = re.findall(r"<svg.*?</svg>", self.text, re.DOTALL)
        self.plots = {one[0].text: one for one in map(ElementTree.fromstring, found)}


class Tables(HTMLParser):
    """The cells of every table, by rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[list[list[str]]] = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.found.append([])
        elif tag == "tr":
            self.found[-1].append([])
        elif tag in ("td", "th"):
            self.found[-1][-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.found[-1][-1][-1] += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    return {name: Page(words, tmp_path_factory.mktemp("page")) for name, words in CASES.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def rows_of(page: Page, first: str) -> dict[str, list[str]]:
    """Of the table whose first column has this name."""
    (found,) = (table for table in page.tables if table[0][0] == first)
    return {row[0]: row[1:] for row in found[1:]}


@pytest.mark.parametrize("name", CASES)
def test_memory_and_step_on_the_page_are_those_of_the_document(
    name: str, pages: dict[str, Page]
) -> None:
    page = pages[name]
    memory = rows_of(page, "category")
    assert memory.keys() == page.plan["memory"].keys()
    for category, cells in memory.items():
        value = page.plan["memory"][category]
        shown = [value[key] / GIB for key in ("value", "low", "high")]
        shown.append(page.plan["evaluation_memory"][category]["value"] / GIB)
        assert [float(cell) for cell in cells] == pytest.approx(shown, abs=0.006)
    causes = rows_of(page, "cause")
    assert set(causes) == {*page.plan["causes_s"], "step"}
    for cause, seconds in page.plan["causes_s"].items():
        assert float(causes[cause][0]) == pytest.approx(seconds, rel=1e-3)


def test_bars_are_as_long_as_their_numbers(pages: dict[str, Page]) -> None:
    page = pages["searched"]
    memory = page.plan["memory"]
    bars = [
        one for one in page.plots["Memory of one GPU by category"].iter()
        if one.tag.endswith("rect")
    ]  # fmt: skip
    names = [*(name for name in memory if name != "total"), "total"]
    width = {name: float(bar.attrib["width"]) for name, bar in zip(names, bars, strict=True)}
    for name in names:
        share = memory[name]["value"] / memory["total"]["value"]
        assert width[name] == pytest.approx(share * width["total"], abs=0.2), name
    starts = [float(bar.attrib["x"]) for bar in bars[:-1]]
    for start, name, following in zip(starts, names, starts[1:], strict=False):
        assert start + width[name] == pytest.approx(following, abs=0.2)


def test_the_curve_has_a_point_an_interval_and_a_row_for_each_number_of_gpus(
    pages: dict[str, Page],
) -> None:
    page = pages["searched"]
    (title,) = (one for one in page.plots if one and "that each GPU gives" in one)
    plot = page.plots[title]
    scaling = page.plan["scaling"]
    circles = [one for one in plot.iter() if one.tag.endswith("circle")]
    heights = [float(one.attrib["cy"]) for one in circles]
    rates = [point["samples_per_s"] / point["gpus"] for point in scaling]
    zero = heights[0] + (heights[1] - heights[0]) * rates[0] / (rates[0] - rates[1])
    unit = (zero - heights[0]) / rates[0]
    assert heights == pytest.approx([zero - unit * rate for rate in rates], abs=0.3)
    (band,) = (one for one in plot.iter() if one.attrib.get("class") == "band")
    corners = [float(pair.split(",")[1]) for pair in band.attrib["points"].split()]
    lows_highs = [point["high"] / point["gpus"] for point in scaling]
    lows_highs += [point["low"] / point["gpus"] for point in reversed(scaling)]
    assert corners == pytest.approx([zero - unit * rate for rate in lows_highs], abs=0.3)
    table = rows_of(page, "GPUs")
    for point in scaling:
        cells = table[f"{point['gpus']:,}"]
        assert cells[0] == point["layout"]
        rates = [point[key] for key in ("samples_per_s", "low", "high")]
        assert [float(cell) for cell in cells[1:4]] == pytest.approx(rates, rel=1e-3)
        assert point["low"] < point["samples_per_s"] < point["high"]
    efficient = [point["gpus"] for point in scaling if point["is_efficient"]]
    assert f"well used: {min(efficient):,} to {max(efficient):,} GPUs" in page.text


def test_every_layout_that_was_compared_is_there_with_its_reason(pages: dict[str, Page]) -> None:
    page = pages["searched"]
    (table,) = (one for one in page.tables if one[0][:2] == ["layout", "why"])
    assert len(table) == 2 + len(page.plan["alternatives"])
    for row, other in zip(table[2:], page.plan["alternatives"], strict=True):
        assert row[0].startswith(other["layout"])
        assert row[1] == other["reason"]


@pytest.mark.parametrize("name", CASES)
def test_a_page_needs_nothing_from_elsewhere_and_says_what_its_plots_are(
    name: str, pages: dict[str, Page]
) -> None:
    page = pages[name]
    assert not re.findall(r"<script|<link|<img|<iframe|@import|url\(|\ssrc=", page.text)
    assert len(page.plots) >= 2
    for plot in page.plots.values():
        named = plot.attrib["aria-labelledby"].split()
        assert [one.attrib.get("id") for one in plot[:2]] == named
        assert all(one.text for one in plot[:2])
    assert page.text.count("<details>") == len(page.plots)


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&amp;"
    folder.mkdir()
    config = folder / "config.json"
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 128}
    config.write_text(json.dumps({"model_type": "gpt2", "_name_or_path": "<b>&amp;", **sizes}))
    html = tmp_path / "plan.html"
    words = f"--seq 64 --batch 8 {HOW} {NODE} --html {html}".split()
    assert main(["plan", str(config), *words]) == 0
    assert "<b>" not in html.read_text()
    drawn = svg.bars(svg.Words('a"b', "<t>", "&d", "s"), [svg.Bar("<x>", 0, 1, "1 < 2")])
    texts = [one.text for one in ElementTree.fromstring(drawn).iter()]
    assert {"<t>", "&d", "<x>", "1 < 2"} <= set(texts)


OVERLAPS = """
const found = [];
for (const plot of document.querySelectorAll('svg')) {
  const whole = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('text')].map(t => [t.textContent,
    t.getBoundingClientRect()]);
  for (const [name, box] of texts)
    if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1)
      found.push(name + ' leaves the plot');
  for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
    const [[a, x], [b, y]] = [texts[i], texts[j]];
    if (x.left < y.right && y.left < x.right && x.top + 3 < y.bottom && y.top + 3 < x.bottom)
      found.push(a + ' over ' + b);
  }
}
return found;
"""
CONTRAST = """
function light(colour) {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(x => {
    const c = x / 255; return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const paper = light(getComputedStyle(document.body).backgroundColor);
const ratios = {};
for (const [name, key] of [['h1', 'color'], ['p', 'color'], ['svg text', 'fill'],
    ['svg .tick', 'fill'], ['.bar', 'fill'], ['.mark', 'stroke']]) {
  const colour = light(getComputedStyle(document.querySelector(name))[key]);
  ratios[name] = (Math.max(colour, paper) + 0.05) / (Math.min(colour, paper) + 0.05);
}
return ratios;
"""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [500, 1000])
def test_no_label_lies_over_another_in_a_browser(
    name: str, width: int, pages: dict[str, Page], browser: Browser
) -> None:
    browser.open(pages[name].path, width)
    n_texts = browser.run("return document.querySelectorAll('svg text').length")
    assert n_texts > 20
    assert browser.run(OVERLAPS) == []
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("is_dark", [False, True])
def test_light_and_dark_are_readable_in_a_browser(
    is_dark: bool, pages: dict[str, Page], browser: Browser
) -> None:
    browser.open(pages["searched"].path, is_dark=is_dark)
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper != "rgb(255, 255, 255)") == is_dark
    ratios = browser.run(CONTRAST)
    # WCAG 2: 4.5 for text, 3 for what is drawn.
    assert all(ratios[name] >= 4.5 for name in ("h1", "p", "svg text", "svg .tick")), ratios
    assert all(ratios[name] >= 3 for name in (".bar", ".mark")), ratios


def test_a_browser_asks_for_nothing_and_opens_the_tables(
    pages: dict[str, Page], browser: Browser
) -> None:
    browser.open(pages["searched"].path)
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    hidden = "return document.querySelector('details table').checkVisibility()"
    assert browser.run(hidden) is False
    browser.run("document.querySelector('summary').click()")
    assert browser.run(hidden) is True


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("{folder}", "is a folder; name a file"),
        ("{folder}/missing/plan.html", "cannot be written (No such file or directory)"),
        ("{folder}/" + "x" * 250, "cannot be written (File name too long)"),
    ],
)
def test_a_page_that_cannot_be_written_is_said_before_anything_is_reckoned(
    target: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = target.format(folder=tmp_path)
    # The model is one that cannot be traced: that is found out later.
    words = ["no.such:model", *f"--batch 8 --seq 8 {HOW} {NODE}".split(), "--html", html]
    assert main(["plan", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--params 1B", f"{GPT} --check some-run"])
def test_a_page_is_of_a_plan(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "plan.html"
    assert main(["plan", *f"{option} {HOW} {NODE} --html {html}".split()]) == 2
    assert "--html draws a plan" in capsys.readouterr().err
    assert not html.exists()
