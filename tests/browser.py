"""A real Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from debian import install_missing

PACKAGES = {"chromium": "chromium", "chromium-driver": "chromedriver"}
TIMEOUT_S = 60


class Browser:
    """One window; `with Browser() as browser`."""

    def __enter__(self) -> Browser:
        """Start the driver, which picks a port and says so, and a session."""
        install_missing(PACKAGES, "a real browser")
        self._profile = tempfile.TemporaryDirectory()
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._url = f"http://127.0.0.1:{self._port()}/session"
            self._url += f"/{self._call('POST', '', self._wanted())['sessionId']}"
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the window and stop the driver."""
        try:
            self._call("DELETE", "", None)
        finally:
            self._stop()

    def open(self, path: Path, width: int = 1000, is_dark: bool = False) -> None:
        """Show a file."""
        self._call("POST", "/window/rect", {"width": width, "height": 1000})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        emulated = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [scheme]}}
        self._call("POST", "/goog/cdp/execute", emulated)
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def _port(self) -> str:
        assert self._driver.stdout
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                return line.rsplit(" ", 1)[-1].strip(". \n")
        raise AssertionError("chromedriver did not start")

    def _wanted(self) -> dict[str, Any]:
        words = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage"]
        words.append(f"--user-data-dir={self._profile.name}")
        return {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": words}}}}

    def _call(self, method: str, path: str, body: Any) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait(timeout=TIMEOUT_S)
        self._profile.cleanup()
