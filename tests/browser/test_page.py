"""The page of a run in a real browser."""

import pytest
from page_cases import EXAMPLES, HOSTILE

TAB, ENTER, RIGHT, LEFT = ("Tab", 9), ("Enter", 13, "\r"), ("ArrowRight", 39), ("ArrowLeft", 37)

# Where a point of the scatter is on the screen; by the number of the example, smallest margin first.
PLACE = """(() => {
  document.documentElement.style.scrollBehavior = "auto";
  document.getElementById("scatter").scrollIntoView({ block: "center" });
  const plot = document.getElementById("scatter-plot"), box = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout, shown = plot.data[0];
  return [box.left + xaxis._offset + xaxis.l2p(shown.x[ROW]), box.top + yaxis._offset + yaxis.l2p(shown.y[ROW])];
})()"""
CENTRE = """(() => {
  const box = document.querySelector(QUERY).getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()"""
CARD = """({
  own: document.getElementById("example-class").textContent,
  rival: document.getElementById("example-rival").textContent,
  margin: document.querySelector("#example-facts dd").textContent,
})"""


def complaints(tab) -> list[str]:
    """Return what the browser complained about, and every request but that for the page itself and data in it."""
    tab.drain(0.3)
    found = []
    for event in tab.events:
        method, values = event["method"], event["params"]
        if method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            found.append(str(values))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            found.append(str(values["args"]))
        elif method == "Network.requestWillBeSent" and values["type"] != "Document":
            address = values["request"]["url"]
            found += [] if address.startswith("data:") else [address]
    return found


def press(tab, key):
    tab.key(*key)


def run_shown(tab) -> list[str]:
    """Return the names of the plots' titles that belong to the chosen run: the sentences that are not hidden."""
    return tab.run("[...document.querySelectorAll('[data-run]')].filter((e) => !e.hidden).map((e) => e.dataset.run)")


def test_the_page_loads_without_complaints_and_without_the_network(tab, two_runs):
    tab.open(two_runs)
    plots = tab.run(
        "[...document.querySelectorAll('figure:not([hidden]) .plot')].map((e) => e.querySelectorAll('svg').length)"
    )
    assert len(plots) >= 9
    assert all(plots)
    tab.until("document.querySelectorAll('#gallery canvas').length === 36")
    assert complaints(tab) == []
    assert tab.run("performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:')).length") == 0


def test_a_complaint_and_a_request_would_be_seen(tab, two_runs):
    tab.open(two_runs)
    tab.run("setTimeout(() => { console.error('loud'); fetch('https://example.com/x').catch(() => {}); nothing(); })")
    seen = " ".join(complaints(tab))
    assert "loud" in seen
    assert "nothing is not defined" in seen
    assert "example.com" in seen, "the page's policy refuses it, and says so"


def test_hovering_shows_the_image_the_classes_and_the_boundary_point(tab, two_runs):
    tab.open(two_runs)
    tab.until("document.querySelectorAll('#example-trio canvas').length === 3")
    first = tab.run(CARD)
    tab.move(*tab.run(PLACE.replace("ROW", "20")))
    tab.until("document.getElementById('walk').value === '20'")
    card = tab.run(CARD)
    assert {card["own"], card["rival"]} == {"T-shirt/top", "Trouser"}
    assert float(card["margin"]) == pytest.approx(tab.run("data.runs[0].points.margin[20]"), rel=0.01)
    assert card["margin"] != first["margin"]
    assert tab.run("document.querySelector('#example .trio').textContent").startswith("imageboundary pointdifference")


def test_the_pictures_are_the_examples_pixel_by_pixel(tab, two_runs):
    import numpy as np

    tab.open(two_runs)
    tab.run("showExample(7)")
    tab.until("document.querySelector('#example-trio').dataset.wanted === '0/7'")
    tab.until("document.querySelectorAll('#example-trio canvas').length === 3")
    read = """[...document.querySelectorAll('#example-trio canvas')].slice(0, 2).map(
        (c) => [...c.getContext('2d').getImageData(0, 0, 8, 8).data].filter((_, i) => i % 4 === 0))"""
    image, point = (np.array(values) for values in tab.run(read))
    index = tab.run("data.runs[0].points.index[7]")
    stored = np.load(two_runs.parent / "at" / "dynamics.npz")
    row = list(stored["index"]).index(index)
    assert (image == stored["inputs"][row].ravel()).all()
    assert np.abs(point - stored["points"][row].ravel().astype(int)).max() <= 1
    assert (point != image).any()


def test_no_two_numbers_at_an_axis_look_the_same(tab, two_runs):
    tab.open(two_runs)
    tab.run("Plotly.relayout(document.querySelector('[data-figure=histogram]'), {'yaxis.range': [0, 0.024]}), 0")
    read = """[...document.querySelectorAll('figure:not([hidden]) .plot')].map((plot) =>
        [...plot.querySelectorAll('.ytick text')].map((tick) => tick.textContent))"""
    ticks = [numbers for numbers in tab.run(read) if numbers]
    assert len(ticks) >= 6
    assert all(len(set(numbers)) == len(numbers) for numbers in ticks), ticks


def test_a_speed_stays_on_its_line_beside_a_long_name(tab, two_runs):
    tab.open(two_runs)
    tab.run("data.runs[0].points.methods.forEach((one) => { one.name = 'some_module_of_mine:SomeVariantOfDyART'; })")
    tab.run("data.runs[0].points.methods.forEach((one) => { one.speed[3] = -1.2345e-12; }), showExample(3)")
    lines = """[...document.querySelectorAll('#example-facts dd')].map((value) => {
        const range = document.createRange();
        range.selectNodeContents(value);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;
    })"""
    assert tab.run(lines) == [1] * 5
    facts = "document.getElementById('example-facts')"
    assert tab.run(f"{facts}.scrollWidth <= {facts}.clientWidth")
    assert "-1.2e-12" in tab.run(f"{facts}.textContent")


def test_tapping_shows_an_example_on_a_phone(tab, two_runs):
    tab.window(390, 844, mobile=True, scale=2)
    tab.open(two_runs)
    tab.tap(*tab.run(PLACE.replace("ROW", "30")))
    tab.until("document.getElementById('walk').value === '30'")


def test_keys_walk_through_the_examples(tab, two_runs):
    tab.open(two_runs)
    tab.run("document.getElementById('walk').focus()")
    before = tab.run(CARD)
    for _ in range(3):
        press(tab, RIGHT)
    assert tab.run("document.getElementById('walk').value") == "3"
    after = tab.run(CARD)
    assert float(after["margin"]) > float(before["margin"]), "by margin"
    assert after["margin"] in tab.run("document.getElementById('walk').getAttribute('aria-valuetext')")
    assert tab.run("Number(document.getElementById('walk').max)") == EXAMPLES - 2, "only locally optimal points"


def test_runs_are_switched_with_the_mouse(tab, two_runs):
    tab.open(two_runs)
    assert set(run_shown(tab)) == {"0"}
    before = tab.run("document.querySelector('[data-figure-of-run=bars]').data.length && data.runs[state.run].name")
    tab.click(*tab.run(CENTRE.replace("QUERY", "'label[for=run-1]'")))
    tab.until("state.run === 1")
    assert set(run_shown(tab)) == {"1"}
    assert before == "at"
    assert tab.run("document.getElementById('scatter-plot').data[0].x[0] === data.runs[1].points.margin[0]")
    assert complaints(tab) == []


def test_runs_and_methods_are_switched_by_keys(tab, two_runs):
    tab.open(two_runs)
    tab.run("document.getElementById('run-0').focus()")
    press(tab, RIGHT)
    assert tab.run("state.run") == 1
    press(tab, LEFT)
    assert tab.run("state.run") == 0
    tab.run("document.querySelector('#methods input:checked').focus()")
    height = tab.run("document.getElementById('scatter-plot').data[0].y[3]")
    press(tab, RIGHT)
    assert tab.run("state.method") == "dyart"
    assert tab.run("document.getElementById('scatter-plot').data[0].y[3]") != height


def test_the_first_tab_stop_skips_to_the_report_and_focus_is_seen(tab, two_runs):
    tab.open(two_runs)
    press(tab, TAB)
    assert tab.run("document.activeElement.className") == "skip"
    assert tab.run("document.activeElement.getBoundingClientRect().left") >= 0
    press(tab, ENTER)
    tab.until("document.activeElement.id === 'main'")
    stops = []
    # A radio button is drawn by its label.
    seen = "((e) => getComputedStyle(e.matches('.switch input') ? e.nextElementSibling : e).outlineStyle)"
    for _ in range(12):
        press(tab, TAB)
        stops.append(tab.run("document.activeElement.id || document.activeElement.getAttribute('role')"))
        if stops[-1] is not None:
            assert tab.run(f"{seen}(document.activeElement)") != "none", stops[-1]
    wanted = ["other-choice", "walk", "more", "only-differences"]
    assert [stop for stop in stops if stop in wanted] == wanted


def test_every_control_and_picture_has_a_name(tab, two_runs):
    tab.open(two_runs)
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("radio", "slider", "combobox", "checkbox", "button", "link", "image", "img", "region", "group")
    named = {role: [] for role in roles}
    for node in tree:
        role = node.get("role", {}).get("value")
        if role in named and not node.get("ignored"):
            named[role].append(node.get("name", {}).get("value", ""))
    assert [(role, names) for role, names in named.items() if not all(names)] == []
    assert {"at", "dyart", "AT", "DyART"} <= set(named["radio"])
    assert len(named["image"] + named["img"]) >= 9


def test_hostile_texts_stay_texts(tab, hostile):
    tab.open(hostile)
    for row in (0, 5):
        tab.move(*tab.run(PLACE.replace("ROW", str(row))))
    tab.run("document.getElementById('run-1').click()")
    tab.until("state.run === 1")
    tab.drain(0.3)
    assert tab.run("window.hacked") is None
    assert tab.run("document.querySelectorAll('img, main svg[onload], a[href*=example], main b').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 3
    assert tab.run("document.querySelector('h1').textContent") == HOSTILE[0]
    names = tab.run("[...document.querySelectorAll('#switch label')].map((e) => e.textContent)")
    assert names == list(HOSTILE[:2])
    assert {tab.run(CARD)["own"], tab.run(CARD)["rival"]} == set(HOSTILE[2:4])
    hovered = tab.run("document.querySelector('[data-figure=loss]').data[0].name")
    assert "<" not in hovered, "plotly reads a little HTML: it is escaped for it"
    assert complaints(tab) == []


@pytest.mark.parametrize("page", ["two_runs", "hostile", "bare"])
def test_no_width_scrolls_sideways(tab, page, request):
    wide = (
        "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.closest('.scrolling, svg') &&"
    )
    wide += " e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"
    tab.window(390, 844, mobile=True, scale=2)
    tab.open(request.getfixturevalue(page))
    for width in (390, 320, 768, 1280):
        tab.window(width, 844, mobile=width < 700)
        tab.until(f"innerWidth === {width}")
        tab.until(f"[...document.querySelectorAll('.main-svg')].every((e) => e.clientWidth <= {width})")
        tab.until(f"document.documentElement.scrollWidth <= {width}", 10)
        assert tab.run(wide) == []


def test_the_dark_theme_changes_page_and_plots_at_once(tab, two_runs):
    tab.open(two_runs)
    paper = "getComputedStyle(document.body).backgroundColor"
    line = "document.querySelector('[data-figure=loss]').data[0].line.color"
    ink = "getComputedStyle(document.querySelector('[data-figure=loss] .xtick text')).fill"
    light = [tab.run(paper), tab.run(line), tab.run(ink)]
    tab.media(prefers_color_scheme="dark")
    tab.until(f"{line} !== {light[1]!r}")
    dark = [tab.run(paper), tab.run(line), tab.run(ink)]
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert brightness(dark[0]) < 60 < 200 < brightness(light[0])
    assert brightness(dark[2]) > brightness(light[2])


def test_text_has_enough_contrast_in_both_themes(tab, two_runs):
    tab.open(two_runs)
    for theme in ("light", "dark"):
        tab.media(prefers_color_scheme=theme)
        for name in ("--ink", "--muted", "--accent", "--towards"):
            for ground in ("--paper", "--wash"):
                pair = [tab.run(f"colour('@{key[2:]}')") for key in (name, ground)]
                assert contrast(*pair) >= 4.5, (theme, name, ground, pair)


def test_printing_is_light_also_in_the_dark(tab, two_runs):
    tab.open(two_runs)
    tab.media(prefers_color_scheme="dark", type="print")
    tab.until("document.querySelector('[data-figure=loss]').layout.font.color.startsWith('rgba(27,35,48')")
    assert brightness(tab.run("getComputedStyle(document.body).backgroundColor")) > 250
    assert tab.run("getComputedStyle(document.querySelector('.walk')).display") == "none"


def test_a_run_without_measurements_says_what_to_do(tab, bare):
    tab.open(bare)
    words = tab.run("document.querySelector('main').innerText")
    for command in ("dyart evaluate", "dyart margins", "dyart dynamics", "--monitor.every"):
        assert command in words
    assert complaints(tab) == []


def test_the_second_run_can_be_hovered_where_the_first_has_no_examples(tab, second_alone):
    tab.open(second_alone)
    assert tab.run("document.getElementById('scatter').hidden")
    tab.run("document.getElementById('run-1').click()")
    tab.until("document.querySelectorAll('#scatter-plot svg').length")
    tab.move(*tab.run(PLACE.replace("ROW", "20")))
    tab.until("document.getElementById('walk').value === '20'")
    assert complaints(tab) == []


def test_without_pictures_words_remain(tab, without_pictures):
    tab.open(without_pictures)
    tab.move(*tab.run(PLACE.replace("ROW", "20")))
    tab.until("document.getElementById('walk').value === '20'")
    assert tab.run("document.querySelectorAll('canvas').length") == 0
    assert tab.run("document.querySelectorAll('#gallery li').length") == 12
    assert "the examples are no images" in tab.run("document.getElementById('vulnerable').innerText")
    assert complaints(tab) == []


def test_more_of_the_gallery_and_only_differences(tab, two_runs):
    tab.open(two_runs)
    tab.run("document.getElementById('more').click()")
    tab.until("document.querySelectorAll('#gallery li').length === 24")
    assert tab.run("document.getElementById('more').hidden")
    rows = "[...document.querySelectorAll('#settings-table tr:not(.group)')].filter((e) => e.checkVisibility()).length"
    before = tab.run(rows)
    tab.run("document.getElementById('only-differences').click()")
    assert 1 < tab.run(rows) < before / 2


def brightness(colour: str) -> float:
    """Return the mean of the channels, 0 to 255."""
    return sum(channels(colour)) / 3


def channels(colour: str) -> list[float]:
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as the Web Content Accessibility Guidelines define it."""

    def luminance(colour: str) -> float:
        parts = [value / 255 for value in channels(colour)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
