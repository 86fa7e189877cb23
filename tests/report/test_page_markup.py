"""Text that stays text: in HTML, in attributes, inside a script, in plotly's texts."""

import json
import math

import pytest
from page_cases import HOSTILE, write_run

from dyart.report.page import curves, figures, motion
from dyart.report.page.markup import Markup, element, joined, script_json
from dyart.report.page.run import read_runs


def test_children_and_attributes_are_escaped_and_markup_is_not():
    inner = element("b", "<i>")
    assert element("p", "a < b ", inner, title='"&"') == '<p title="&quot;&amp;&quot;">a &lt; b <b>&lt;i&gt;</b></p>'
    assert isinstance(joined("<", Markup("<br>")), Markup)
    assert joined("<", Markup("<br>")) == "&lt;<br>"


def test_attributes_as_html_writes_them():
    assert element("input", type="radio", checked=True, disabled=False, aria_label="x", class_=None) == (
        '<input type="radio" checked aria-label="x">'
    )


@pytest.mark.parametrize("text", [*HOSTILE, "<!--<script>", "]]>"])
def test_json_in_a_script_has_no_character_that_html_reads(text):
    written = script_json({text: [text]})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {text: [text]}


def test_json_has_six_digits_and_no_numbers_that_are_none():
    assert script_json([0.123456789, math.nan, math.inf, 3, True, None]) == "[0.123457,null,null,3,true,null]"


def test_plotly_gets_no_tags_from_names(tmp_path):
    folder = write_run(tmp_path / HOSTILE[0], "at", 0, HOSTILE)
    run = read_runs([folder])[0]
    drawn = [figures.accuracy([run]), figures.histogram([run]), curves.loss([run]), motion.bars(run)]
    drawn += curves.others([run]).values()
    for figure in drawn:
        for trace in figure["data"]:
            assert "<" not in trace["name"]
        axes = (figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
        assert not any("<" in words for words in axes)
    assert "&lt;img" in figures.accuracy([run])["data"][0]["name"]
