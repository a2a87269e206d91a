"""Headless Chromium by its DevTools protocol: open a page, run JavaScript in it, press keys, take a picture."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.numbers = socket, itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while (answer := await self.socket.receive_json(timeout=60)).get("id") != number:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        for _ in range(int(seconds / 0.1)):
            if await self.run(script):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {script}")

    async def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"]))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Page]:
    """A tab of a new Chromium in which a page is loaded."""
    assert CHROMIUM is not None
    # In memory where files of tests are, as it writes hundreds.
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    with tempfile.TemporaryDirectory(prefix="chromium-", dir=root, ignore_cleanup_errors=True) as profile:
        switches = ["--headless=new", "--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"]
        command = [CHROMIUM, *switches, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            noted = Path(profile, "DevToolsActivePort")
            for _ in range(600):
                if noted.exists() and noted.read_text().count("\n"):
                    break
                await asyncio.sleep(0.1)
            port = noted.read_text().split("\n")[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tab = next(one for one in await answer.json() if one["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    await page.call("Page.enable")
                    await page.call("Page.navigate", url=url)
                    await page.until("document.readyState === 'complete' && location.href !== 'about:blank'")
                    yield page
        finally:
            process.terminate()
            process.wait(30)
