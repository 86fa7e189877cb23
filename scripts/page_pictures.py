"""Draw the README's pictures of a page: ``python scripts/page_pictures.py runs/demo/report.html``. Needs chromium."""

import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Chromium  # noqa: E402

# By file: part of the page, and its height in the picture.
PICTURES = {"report-dynamics": ("scatter", 600), "report-gallery": ("gallery", 460)}
WIDTH, HEIGHT, BORDER = 1180, 900, 12
COLOURS = 128
# An example in the middle of the picture is chosen with the slider, as a person would.
CHOOSE = """{
const walk = document.getElementById("walk");
walk.value = Math.round(walk.max / 4);
walk.dispatchEvent(new Event("input", { bubbles: true }));
}"""


def main(page: Path) -> None:
    """Open the page, go to each part and keep what is seen of it."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Chromium(Path(profile), WIDTH, HEIGHT)
        try:
            browser.open(page)
            for name, (part, most) in PICTURES.items():
                browser.run(f"document.getElementById({part!r}).scrollIntoView()")  # what is not seen is not drawn
                browser.drain(1.0)
                browser.run(CHOOSE)
                browser.drain(1.0)
                rect = f"document.getElementById({part!r}).getBoundingClientRect()"
                left, top, width, height = browser.run(f"(r => [r.x, r.y + scrollY, r.width, r.height])({rect})")
                size = {"width": width + 2 * BORDER, "height": min(height, most) + 2 * BORDER}
                clip = {"x": left - BORDER, "y": top - BORDER, **size, "scale": 1}
                shot = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)[
                    "data"
                ]
                picture = Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB")
                path = ROOT / "docs" / "pictures" / f"{name}.png"
                picture.quantize(COLOURS).save(path, optimize=True)
                print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
