"""Headless Chromium through selenium, and axe-core's checks of a page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.common import ROOT, NotInstalledError

AXE = ROOT / "build" / "browser" / "axe.min.js"
MISSING = "run tools/browser.sh"


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Context manager: a selenium driver of a headless browser; raises NotInstalledError."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise NotInstalledError(f"selenium is not installed: {MISSING}") from None
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None or not AXE.is_file():
        raise NotInstalledError(f"chromium, its driver or axe-core is not installed: {MISSING}")
    options = Options()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def set_view(chrome: Any, width: int, height: int, *, dark: bool = False) -> None:
    """Give the page a size in pixels, and a light or a dark scheme; below 600 wide it is a phone's."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(chrome: Any, path: Path, width: int, *, dark: bool = False) -> None:
    """Write a picture of the whole page."""
    set_view(chrome, width, 900, dark=dark)
    height = chrome.execute_script("return document.documentElement.scrollHeight")
    set_view(chrome, width, height, dark=dark)
    chrome.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    chrome.save_screenshot(str(path))


def accessibility(chrome: Any) -> list[dict[str, Any]]:
    """Return axe-core's findings on the page: id, impact, help, and the elements."""
    chrome.execute_script(AXE.read_text())
    found = chrome.execute_async_script("axe.run().then(arguments[0])")
    return [
        {name: each[name] for name in ("id", "impact", "help")}
        | {"elements": [node["html"][:200] for node in each["nodes"][:3]]}
        for each in found["violations"]
    ]


def wait_until(chrome: Any, script: str, seconds: float = 60) -> Any:
    """Return what a script's expression gives once it is true; raises TimeoutException."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(chrome, seconds, poll_frequency=0.05).until(
        lambda driver: driver.execute_script(f"return {script}")
    )
