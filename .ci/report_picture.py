"""Photograph the report of a training run: `make report-picture` writes docs/assets/report.png. It needs Chromium in PATH.

The run is the second one of examples/training_reports.py. The picture ends before the tables for each worker. It is light:
the site shows it with dark colors where the page is dark.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from PIL import Image, ImageChops, PngImagePlugin

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples" / "training_reports.py"
PICTURE = ROOT / "docs" / "assets" / "report.png"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT, SCALE, COLORS = 1100, 1900, 1.5, 128
HEADING = re.compile(r"<h2>([^<{]+\?)</h2>")


def take_first_part(page: str) -> str:
    """Return the page of a report up to the tables for each worker."""
    return page[: page.index("<h2>Workers and replicas")] + "</body></html>"


def photograph(browser: str, folder: pathlib.Path, page: str) -> Image.Image:
    """Return what the browser shows of a page, without the empty part below it."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = [browser, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    command += ["--no-sandbox"] * (
        os.geteuid() == 0
    )  # Chromium does not run as root otherwise; the page is ours
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{HEIGHT}"]
    command += [f"--force-device-scale-factor={SCALE}", f"--screenshot={folder / 'page.png'}"]
    subprocess.run([*command, (folder / "page.html").as_uri()], check=True, capture_output=True)
    whole = Image.open(folder / "page.png").convert("RGB")
    left, _, _, bottom = ImageChops.difference(whole, Image.new("RGB", whole.size, "white")).getbbox()
    if bottom == whole.height:
        raise SystemExit(f"the page is higher than {HEIGHT} pixels")
    return whole.crop((0, 0, whole.width, min(bottom + left, whole.height)))


def main() -> None:
    """Train, and photograph."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise SystemExit(f"needs one of {', '.join(NAMES)} in PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, str(PROGRAM), name], check=True, stdout=subprocess.DEVNULL)
        page = take_first_part((folder / "fast" / "report.html").read_text(encoding="utf-8"))
        picture = photograph(browser, folder, page).quantize(COLORS, dither=Image.Dither.NONE)
    shown = PngImagePlugin.PngInfo()
    shown.add_text("headings", "\n".join(HEADING.findall(page)))
    picture.save(PICTURE, optimize=True, pnginfo=shown)
    print(f"{PICTURE}: {picture.width} x {picture.height}, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
