"""A real browser, driven over a pipe: chromium's DevTools protocol, without any package between."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--hide-scrollbars",
    "--mute-audio",
)
PATIENCE = 60.0


def browser() -> str | None:
    """Return the path of a browser on this machine: $DYART_BROWSER, or the first that is known."""
    return os.environ.get("DYART_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one tab. Commands and events are those of the DevTools protocol."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        self.profile, self.buffer, self.number = profile, b"", 0
        self.events: list[dict[str, Any]] = []
        reads, self.commands = os.pipe()  # what it reads, what we write
        self.answers, writes = os.pipe()
        # Root has no sandbox; a test's own page needs none.
        flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        program = browser()
        assert program is not None
        quiet = os.open(os.devnull, os.O_WRONLY)
        # The protocol's pipes are 3 and 4. Not subprocess: it can pass descriptors on, but not renumber them. Above 4
        # first, in case a pipe has one of the two numbers itself.
        high = [os.dup2(end, 200 + end, inheritable=False) for end in (reads, writes)]
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        actions += [(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)]
        self.pid = os.posix_spawn(
            program, [program, *flags, "about:blank"], os.environ, file_actions=actions, setpgroup=0
        )
        for end in (reads, writes, quiet, *high):
            os.close(end)
        target = self._tab()
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def _tab(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            targets = self.call("Target.getTargets", session=False)["targetInfos"]
            for target in targets:
                if target["type"] == "page":
                    return str(target["targetId"])
            time.sleep(0.05)
        raise TimeoutError("the browser opened no tab")

    session: str | None = None

    def call(self, method: str, /, session: bool = True, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session and self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(PATIENCE)
            if answer is None:
                raise TimeoutError(f"no answer to {method} within {PATIENCE:g} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self, patience: float) -> dict[str, Any] | None:
        end = time.monotonic() + patience
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            read = os.read(self.answers, 1 << 20)
            if not read:
                raise RuntimeError("the browser ended")
            self.buffer += read
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))

    def drain(self, seconds: float = 0.0) -> None:
        """Take in the events of the next moments."""
        end = time.monotonic() + seconds
        while (event := self._next(max(0.0, end - time.monotonic()))) is not None:
            self.events.append(event)

    def open(self, path: Path) -> None:
        """Open a page of our own and wait until its script has run."""
        self.events.clear()
        address = path.resolve().as_uri()
        self.call("Page.navigate", url=address)
        self.until(f"location.href === {json.dumps(address)} && document.documentElement?.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", {}).get("description", answer)))
        return answer["result"].get("value")

    def until(self, condition: str, patience: float = PATIENCE) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + patience
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.03)

    def key(self, key: str, code: int, text: str = "") -> None:
        """Press a key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click with the mouse."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Tap with a finger."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def window(self, width: int, height: int, mobile: bool = False, scale: float = 1.0) -> None:
        """Make the window as large as a screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def media(self, **features: str) -> None:
        """Set media features (``prefers_color_scheme="dark"``) or, as ``type``, the medium (``print``)."""
        medium = features.pop("type", "")
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=named)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser and its processes."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.call("Browser.close", session=False)
        end = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)  # its own group: we made it
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.05)
        os.close(self.commands)
        os.close(self.answers)
