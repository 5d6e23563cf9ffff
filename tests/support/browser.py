"""A headless Chromium, driven by the DevTools protocol over pipes.

    python tests/support/browser.py PAGE SCREEN.png [SCRIPT]

saves the screen of a page, once SCRIPT, an expression, has been evaluated in it.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A Chromium with one page of 1200 x 900 pixels. Whatever the page asks of the network fails."""

    def __init__(self, page: Path) -> None:
        # The browser's own processes may write into it a moment longer than their parent lives.
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (own_in, self._to), (self._from, own_out) = os.pipe(), os.pipe()
        program = find()
        assert program, f"expected one of {NAMES} on the path"
        # The protocol's pipes are the file descriptors 3 and 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{own_in} 4>&{own_out}', program, *_OPTIONS,
             f"--user-data-dir={self._profile.name}"],
            pass_fds=(own_in, own_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(own_in)
        os.close(own_out)
        self._input, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.absolute().as_uri())
        # Events may be those of the empty page before it, and its scripts end in the middle of an expression.
        while not self._has_loaded():
            time.sleep(0.05)
        self.call("Page.bringToFront")  # else a key may reach no element

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _has_loaded(self) -> bool:
        try:
            return self.evaluate("location.protocol + document.readyState") == "file:complete"
        except AssertionError:
            return False

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key, such as `Tab` or `ArrowRight`."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def picture(self) -> bytes:
        """The page as it is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._input:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._input += more
        message, _, self._input = self._input.partition(b"\0")
        return json.loads(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()
        self._profile.cleanup()


_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
    "--window-size=1200,900", "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-dev-shm-usage",
)  # fmt: skip


def main() -> None:
    page, picture, *script = sys.argv[1:]
    with Browser(Path(page)) as browser:
        for own in script:
            browser.evaluate(own)
        Path(picture).write_bytes(browser.picture())


if __name__ == "__main__":
    main()
