"""Open every page of the built site in headless Chromium, check it, and photograph it.

    uv run --group docs python scripts/build_site.py
    uv run --group screenshots python scripts/screenshots.py [REPORT.html...]

Checked at 1280 and 390 pixels: no failed request, no error in the console, no link to a page or
heading that does not exist, no formula left as text, no picture without size or at less than 0.4 of
it (but for those of class "fit"), nothing wider than the screen; outside of docs/evidence no
picture or table wider than its column; and the search finds what `SEARCHES` says. Files that are
named, such as those of `nsim report`, are opened from disk. Pictures of whole pages, in light and
dark, go to build/screenshots. The browser is `chromium`, or what `playwright install` brought.
"""

import shutil
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urlsplit

import prose
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
SITE, OUT = ROOT / "site", ROOT / "build" / "screenshots"
WIDTHS = (1280, 390)
NAVIGATION = [
    page.removesuffix(".md").removesuffix("/index").replace("/", "-")
    for page in prose.navigation_labels()
]
"""Names of the pages whose pictures are kept; all pages are checked."""
SEARCHES = {
    "cite": "reference/cite/",
    "install": "#install",
    "loss nan": "how-to/learning-rates/",
    "what is M": "explanation/mathematics/#what-is-m",
    "timm": "how-to/timm/",
}
"""What a reader types, and the page that has the answer."""
FIRST_RESULT = """() => [...document.querySelectorAll('*')]
  .map(e => e.shadowRoot?.querySelector('a[href^=http]')?.href).find(a => a) ?? 'nothing'"""
FACTS = Path(__file__).with_name("page_facts.js").read_text("utf-8")


class Quiet(SimpleHTTPRequestHandler):
    """A file server without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def visit_page(page: Page, address: str, name: str) -> tuple[list[str], dict]:
    """Problems of a page, and what it links to and holds."""
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("requestfailed", lambda r: problems.append(f"{r.url} was not loaded"))
    page.goto(address, wait_until="load", timeout=180_000)  # busy machines take long
    facts = page.evaluate(FACTS)
    if facts["wide"] > 1:
        problems.append(f"is {facts['wide']} pixels wider than the screen")
    problems += [f"picture {source} is empty" for source in facts["empty"]]
    problems += [f"picture {text} is too small to read" for text in facts["small"]]
    problems += [f"{text!r} is wider than its column" for text in facts["broad"]]
    problems += [f"formula is text: {text}" for text in facts["raw"]]
    if facts["flat"]:
        problems.append(f"{facts['flat']} formulas have no height")
    if name in NAVIGATION:
        photograph_page(page, name)
    return problems, facts


def photograph_page(page: Page, name: str) -> None:
    """The whole page in both themes."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(1000)  # the theme follows the media
        scheme = "slate" if theme == "dark" else "default"
        page.evaluate(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
        width = page.viewport_size["width"] if page.viewport_size else 0
        page.screenshot(path=OUT / f"{name}-{width}-{theme}.png", full_page=True)


def search_problems(page: Page, address: str) -> list[str]:
    """Searches of which the first result is another page."""
    found = {}
    for query in SEARCHES:
        page.goto(address, wait_until="load", timeout=180_000)
        page.wait_for_timeout(1000)
        page.keyboard.press("/")
        page.wait_for_timeout(1000)
        page.keyboard.type(query, delay=20)
        page.wait_for_timeout(3000)
        found[query] = page.evaluate(FIRST_RESULT)
    return [
        f"the search for {query!r} finds {first}"
        for query, first in found.items()
        if not first.startswith(address + SEARCHES[query])
    ]


def broken_links(address: str, facts: dict[str, dict]) -> list[str]:
    """Links between pages of the site that lead nowhere."""
    found = []
    for page, seen in facts.items():
        for link in seen["links"]:
            if not link.startswith(address):
                continue
            target, heading = urldefrag(link)
            file = SITE / unquote(urlsplit(target).path.lstrip("/"))
            if not (file.is_file() or (file / "index.html").is_file()):
                found.append(f"{page}: {link} does not exist")
            elif heading and target in facts and unquote(heading) not in facts[target]["ids"]:
                found.append(f"{page}: {link} has no such heading")
    return found


def page_names(address: str) -> dict[str, str]:
    """Names of all pages by their addresses."""
    found = {}
    for file in sorted(SITE.rglob("index.html")):
        place = file.parent.relative_to(SITE).as_posix()
        place = "" if place == "." else f"{place}/"
        found[address + place] = place.rstrip("/").replace("/", "-") or "index"
    return found


def site_problems(browser: Browser, reports: list[str]) -> list[str]:
    """All problems of all pages at all widths."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    address, problems, facts = f"http://127.0.0.1:{server.server_port}/", [], {}
    wanted = page_names(address)
    wanted |= {Path(file).resolve().as_uri(): f"index-{Path(file).stem}" for file in reports}
    for width in WIDTHS:
        for place, name in wanted.items():
            page = browser.new_page(viewport={"width": width, "height": 900})
            found, facts[place] = visit_page(page, place, name)
            page.close()
            problems += [f"{name} at {width}: {problem}" for problem in found]
    return problems + broken_links(address, facts) + search_problems(browser.new_page(), address)


def main() -> None:
    """Check all, and say what is wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        problems = site_problems(browser, sys.argv[1:])
        browser.close()
    sys.stdout.write("\n".join([*problems, f"{len(problems)} problems; pictures in {OUT}\n"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
