"""The pages of ``bepa view`` in Debian's chromium: 10,000 made episodes, a real run, a run that goes on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
from made_record import HOSTILE, made_line, made_metrics, made_run, made_step, write_lines

from bepa_torchrl.cli import main
from bepa_torchrl.experts import record_expert, save_trace
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.tasks.suites.registry import load_suite

pytestmark = pytest.mark.browser

MANY = 10_000
SMALL = ("env.desktops=8", "env.train_limit=2", "env.held_out_limit=1", "env.max_steps=4", "eval.every=0")
PAINT, FILTER = 2000.0, 200.0  #: milliseconds
SERVED = 60_000  #: milliseconds until a served change must be on the page


class Pages:
    """One page of the browser, and what it must not do."""

    def __init__(self, browser: Any, address: str, width: int = 1280) -> None:
        self.address = address
        self.page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda line: line.type == "error" and self.problems.append(line.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", self._requested)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.problems.append(f"requested {request.url}")

    def go(self, where: str) -> Any:
        """A page, loaded from the start."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}index.html{where}")
        self.page.wait_for_selector("#page[data-ready]")
        return self.page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    assert chromium, "chromium not found; fix: apt-get install chromium"
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--js-flags=--expose-gc", "--enable-precise-memory-info"]
        launched = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


def written(folder: Path, *runs: Path) -> str:
    assert main(["view", *map(str, runs), "--out", str(folder)]) == 0
    return f"file://{folder}/"


@pytest.fixture(scope="module")
def many_pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("many")
    return written(folder / "out", made_run(folder / "many", MANY))


@pytest.fixture
def many(browser: Any, many_pages: str) -> Iterator[Pages]:
    pages = Pages(browser, many_pages)
    yield pages
    pages.page.context.close()
    assert pages.problems == []


@pytest.fixture(scope="module")
def real_pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of two iterations on the simulated desktop, and its expert's traces as a source of their own."""
    folder = tmp_path_factory.mktemp("real")
    settings = ["experiment=smoke", "compare=[]", "collect.group_size=4", "record.outcomes=true", *SMALL]
    with chdir(folder):
        assert main(["train", *settings, "name=real"]) == 0
    run = folder / "runs" / "real"
    return written(folder / "out", run, run / "prepared" / "experts")


@pytest.fixture(scope="module")
def desktop_pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The oracle's trace of one task on a real desktop."""
    folder = tmp_path_factory.mktemp("desktop")
    with make_desktop("local", width=640, height=360) as desktop:
        save_trace(record_expert(desktop, load_suite("varied").split("train")[0], seed=0), folder)
    return written(folder / "out", folder)


@pytest.fixture(scope="module")
def few_pages(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("few")
    return written(folder / "out", made_run(folder / "run", 40))


@pytest.fixture
def real(browser: Any, real_pages: str) -> Iterator[Pages]:
    pages = Pages(browser, real_pages, width=1920)
    yield pages
    pages.page.context.close()
    assert pages.problems == []


# --- 10,000 episodes ------------------------------------------------------------------------------------------------


def test_first_paint(many: Pages) -> None:
    times = []
    for _ in range(3):
        page = many.go("#episodes")
        assert page.locator(".lines .line").count() > 10
        times.append(page.evaluate("performance.getEntriesByName('drawn')[0].startTime"))
    assert min(times) < PAINT, times


@pytest.mark.parametrize(
    ("field", "value", "left"),
    [("task", "task-07", 160), ("iteration", "3-4", 256), ("text", "task-12", 160), ("outcome", "success", 1000)],
)
def test_filters(many: Pages, field: str, value: str, left: int) -> None:
    page = many.go("#episodes")
    script = """([name, value]) => {
        const field = document.querySelector(`[name=${name}]`);
        const start = performance.now();
        field.value = value;
        field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
        document.body.offsetHeight;  // until it is laid out
        return performance.now() - start;
    }"""
    times = []
    for each in (value, "", value, "", value):
        times.append(page.evaluate(script, [field, each]))
    assert min(times) < FILTER, times
    assert page.locator(".count").inner_text().startswith(f"{left:,} of {MANY:,}")


def test_the_texts_of_episodes_are_searched(many: Pages) -> None:
    page = many.go("#episodes")
    page.fill("[name=text]", "press button-42.")
    page.wait_for_function("document.querySelector('.count').textContent.startsWith('103 of')")


def test_lines_are_sorted_and_drawn_where_they_are_in_sight(many: Pages) -> None:
    page = many.go("#episodes")
    page.click(".head button:has-text('advantage')")
    page.click(".head button:has-text('advantage')")
    assert page.locator(".lines .line").first.inner_text().split("\n")[-4:] == ["2", "2", "-0.903", "0"]
    page.evaluate("document.querySelector('.window').scrollTop = 1e9")
    page.wait_for_function(f"[...document.querySelectorAll('.lines .line')].at(-1).offsetTop === 28 * ({MANY} - 1)")
    assert page.locator(".lines .line").count() < 100


def test_the_tab_key_goes_through_all_lines(many: Pages) -> None:
    page = many.go("#episodes")
    page.focus(".window")
    for number in range(60):
        page.keyboard.press("Tab")
        page.wait_for_function(f"document.activeElement.style.top === '{28 * number}px'", timeout=10_000)


def test_columns_stay_below_their_titles_in_a_narrow_window(browser: Any, many_pages: str) -> None:
    pages = Pages(browser, many_pages, width=480)
    page = pages.go("#episodes")
    page.locator(".lines .line").first.hover()
    page.mouse.wheel(2000, 0)
    page.wait_for_function("""() => {
        const right = (what) => document.querySelector(what).getBoundingClientRect().right;
        const cell = right(".lines .line > span:last-child");
        return cell <= innerWidth && Math.abs(cell - right(".line.head > button:last-child")) < 2;
    }""")
    page.context.close()
    assert pages.problems == []


def test_a_filter_is_a_link(many: Pages) -> None:
    page = many.go("#episodes")
    page.fill("[name=task]", "task-07")
    page.select_option("[name=outcome]", "success")
    address = page.url
    assert "task=task-07&outcome=success" in address
    found = page.locator(".count").inner_text()
    again = many.go(address[address.index("#") :])
    assert again.locator(".count").inner_text() == found
    again.locator(".lines .line").first.click()
    again.wait_for_selector("#page.episode[data-ready]")
    again.go_back()
    again.wait_for_selector("#page.episodes[data-ready]")
    assert again.locator(".count").inner_text() == found


def test_memory_stays_flat_while_episodes_are_read(many: Pages) -> None:
    page = many.go("#episodes")
    script = """async () => {
        for (let index = 0; index < view.rows.length; index += 50) await view.episode(view.rows[index]);
        gc();
        return performance.memory.usedJSHeapSize;
    }"""
    first, again = page.evaluate(script), page.evaluate(script)
    assert first < 100e6
    assert again - first < 5e6


def test_keys_go_from_step_to_step(many: Pages) -> None:
    page = many.go("#episode?id=many/bepa/episodes:9")
    chosen = page.locator(".strip .chosen")
    for key, step in (("ArrowRight", "2"), ("ArrowLeft", "1"), ("j", "2"), ("j", "2"), ("k", "1"), ("k", "1")):
        page.keyboard.press(key)
        assert chosen.inner_text() == step
        assert f"step={step}" in page.url


def test_curves_are_drawn_by_the_library_of_the_folder(many: Pages) -> None:
    page = many.go("#run")
    page.wait_for_selector(".plot .main-svg")
    assert page.locator(".plot").count() == 4  # of the made metrics
    assert page.locator(".plot", has_text="infrastructure failures by type").count() == 1


# --- a real run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "episodes", "cache"])
def test_each_page_of_a_real_run(real: Pages, name: str) -> None:
    page = real.go(f"#{name}")
    expected = {"run": ".plot .main-svg", "episodes": ".lines .line", "cache": "table .timeline"}
    page.wait_for_selector(expected[name])
    assert "undefined" not in page.inner_text("main")
    assert "null" not in page.inner_text("main").split()


def test_an_episode_next_to_the_experts(real: Pages) -> None:
    page = real.go("#episode?id=real/bepa/episodes:0")
    page.wait_for_selector(".screen img")
    page.wait_for_function("document.querySelector('.screen img').naturalWidth === 128")
    assert page.locator(".token").count() > 3
    page.click("text=expert traces, expert")
    page.wait_for_selector(".panes.two .pane >> nth=1")
    assert page.locator(".hint", has_text="aligned").count() == 1


def test_a_click_is_drawn_where_it_was(many: Pages) -> None:
    page = many.go("#episode?id=many/bepa/episodes:0")
    page.wait_for_selector(".marks .dot")
    assert page.locator(".marks circle.ring").first.get_attribute("cx") == "40"
    box, mark = (page.locator(each).first.bounding_box() for each in (".screen img", ".marks .dot"))
    assert mark["x"] + mark["width"] / 2 == pytest.approx(box["x"] + box["width"] * 40 / 128, abs=3)


def test_from_a_group_to_its_update_and_to_an_episode(real: Pages) -> None:
    page = real.go("#group?stream=real/bepa/episodes&group=0")
    assert page.locator(".card").count() >= 4
    page.click("text=To the update of iteration 1")
    page.wait_for_selector("#page.update[data-ready]")
    assert page.locator("td", has_text="collect/success").count() == 1
    page.go_back()
    page.wait_for_selector("#page.group[data-ready]")
    page.locator(".card").first.click()
    page.wait_for_selector("#page.episode[data-ready]")


def test_a_trace_of_a_real_desktop(browser: Any, desktop_pages: str) -> None:
    pages = Pages(browser, desktop_pages)
    page = pages.go("#episodes")
    page.locator(".lines .line").first.click()
    page.wait_for_function("document.querySelector('.screen img')?.naturalWidth === 640")
    assert page.locator(".pane pre").count() >= 2
    page.context.close()
    assert pages.problems == []


@pytest.mark.parametrize(
    "where", ["run", "cache", "episode?id=run/bepa/episodes:0", "update?run=run&method=bepa&iteration=1"]
)
def test_a_page_is_no_wider_than_a_narrow_window(browser: Any, few_pages: str, where: str) -> None:
    pages = Pages(browser, few_pages, width=390)
    page = pages.go(f"#{where}")
    assert page.evaluate("document.getElementById('page').scrollWidth") <= 390
    page.context.close()
    assert pages.problems == []


def test_a_browser_without_javascript_says_so(browser: Any, few_pages: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{few_pages}index.html")
    assert "JavaScript" in page.inner_text("body")
    assert not page.locator("text=Loading").is_visible()
    context.close()


@pytest.mark.parametrize(
    ("where", "title"),
    [
        ("episodes", "Episodes"),
        ("episode?id=run/bepa/episodes:0", "Episode: Do the thing 0."),
        ("group?stream=run/bepa/episodes&group=1", "Group: Do the thing 1."),
        ("update?run=run&method=bepa&iteration=1", "Update: Iteration 1 of run bepa"),
        ("constructor", "Run"),
    ],
)
def test_the_title_of_a_page_names_what_it_shows(browser: Any, few_pages: str, where: str, title: str) -> None:
    pages = Pages(browser, few_pages)
    assert pages.go(f"#{where}").title() == f"{title} – bepa view"
    pages.page.context.close()
    assert pages.problems == []


def test_there_is_no_page_of_an_iteration_that_there_is_not(browser: Any, few_pages: str) -> None:
    pages = Pages(browser, few_pages)
    page = pages.go("#update?run=run&method=bepa&iteration=2")
    assert "There is no iteration 2 of run bepa." in page.inner_text("main")
    page = pages.go("#update?run=run&method=bepa&iteration=1")
    assert page.locator("a:text-matches('previous|next')").count() == 0
    page.context.close()
    assert pages.problems == []


# --- what a model writes, and a run that goes on ----------------------------------------------------------------------


def test_model_text_is_text(browser: Any, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0)
    hostile = made_line(0, [made_step("", HOSTILE)], task_id=HOSTILE, instruction=HOSTILE, stop_reason=HOSTILE)
    write_lines(run / "bepa" / "episodes.jsonl", [hostile, hostile | {"slot": 1, "off_policy": True}])
    pages = Pages(browser, written(tmp_path / "out", run))
    for where in ("#episodes", "#cache", "#group?stream=run/bepa/episodes&group=0", "#episode?id=run/bepa/episodes:0"):
        page = pages.go(where)
        assert page.locator("img[src=x], main script").count() == 0
        assert "<img src=x onerror" in page.inner_text("main")
        assert "\u202e" not in page.inner_text("main")
    pages.page.context.close()
    assert pages.problems == []


def test_a_rollout_whose_desktop_failed_is_in_no_rate(browser: Any, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0)
    lost = {"stop_reason": "env_error", "reward": None, "advantage": None, "failure": "died", "trained": False}
    lines = [made_line(8 + slot, []) for slot in range(3)] + [made_line(11, [], **lost)]
    write_lines(run / "bepa" / "episodes.jsonl", lines)
    pages = Pages(browser, written(tmp_path / "out", run))
    page = pages.go("#group?stream=run/bepa/episodes&group=1")
    assert "1 of 3 recorded rollouts succeeded, 1 without a reward." in page.inner_text("main")
    page = pages.go("#update?run=run&method=bepa&iteration=1")
    assert page.locator("td", has_text="1 of 3, 1 without a reward").count() == 1
    page.context.close()
    assert pages.problems == []


@contextmanager
def served(run: Path) -> Iterator[str]:
    """``bepa view --serve`` of a run; its address. It ends on Ctrl-C."""
    # a program that a background shell has started ignores SIGINT, and so do those that it starts
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from bepa_torchrl.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "view", str(run), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[0]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 130


def add(run: Path, number: int) -> None:
    """An episode arrives, and the metrics of an iteration."""
    with (run / "bepa" / "episodes.jsonl").open("a") as file:
        file.write(json.dumps(made_line(number, [])) + "\n")
    with (run / "bepa" / "iterations.jsonl").open("a") as file:
        file.write(json.dumps(made_metrics(number)) + "\n")


def test_the_server_follows_a_run(browser: Any, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 3)
    with served(run) as address:
        pages = Pages(browser, address)
        page = pages.go("#episodes")
        assert page.locator(".count").inner_text().startswith("3 of")
        page.click("[name=task]")
        page.keyboard.type("tas")
        add(run, 3)
        page.wait_for_function("document.querySelector('.count').textContent.startsWith('4 of')", timeout=SERVED)
        page.keyboard.type("k-")
        assert page.input_value("[name=task]") == "task-"  # a reader goes on typing
        page.context.close()
        assert pages.problems == []


def test_a_page_stays_as_its_reader_left_it_when_data_arrive(browser: Any, tmp_path: Path) -> None:
    """Zoom, scrolling, the keyboard's focus and a list that is open; a drag of the mouse is not interrupted."""
    run = made_run(tmp_path / "run", 200)
    with served(run) as address:
        pages = Pages(browser, address, width=500)
        page = pages.go("#run")
        page.wait_for_selector(".plot .main-svg")
        page.evaluate("Plotly.relayout(document.querySelector('.plot'), {'xaxis.range': [1, 2]})")
        page.evaluate("document.querySelector('#page').scrollTop = 40")
        assert page.evaluate("document.querySelector('#page').scrollTop") == 40
        page.focus(".bar input[type=checkbox]")
        page.evaluate("document.querySelector('#page').dataset.before = 'yes'")
        add(run, 200)
        drawn = "document.querySelector('#page[data-ready]:not([data-before])') && document.activeElement.tagName"
        page.wait_for_function(f"{drawn} === 'INPUT'", timeout=SERVED)
        page.wait_for_function("document.querySelector('.plot').layout?.xaxis.range.join() === '1,2'", timeout=SERVED)
        assert page.evaluate("document.querySelector('#page').scrollTop") == 40
        page.context.close()
        assert pages.problems == []

        pages = Pages(browser, address)
        page = pages.go("#episodes")
        page.evaluate("document.querySelector('.window').scrollTop = 2800")
        page.wait_for_function("document.querySelector('.lines').textContent.includes('task-12')")
        line = page.locator(".lines .line").nth(8)
        line.focus()
        href = line.get_attribute("href")
        page.mouse.move(5, 5)
        page.mouse.down()
        add(run, 201)
        page.wait_for_function(
            "fetch('changes').then((a) => a.text()).then((t) => Number(t) > view.version)", timeout=SERVED
        )
        page.mouse.up()
        page.focus(f".lines a[href='{href}']")
        page.wait_for_function("document.querySelector('.count').textContent.startsWith('202 of')", timeout=SERVED)
        page.wait_for_function(f"document.activeElement.getAttribute('href') === '{href}'", timeout=SERVED)
        page.focus("select[name=outcome]")
        add(run, 202)
        page.wait_for_function("document.querySelector('#state').textContent.startsWith('new data')", timeout=SERVED)
        page.evaluate("document.activeElement.blur()")
        page.wait_for_function("document.querySelector('.count').textContent.startsWith('203 of')", timeout=SERVED)
        page.context.close()
        assert pages.problems == []


def test_a_step_that_was_chosen_keeps_the_focus(many: Pages) -> None:
    page = many.go("#episode?id=many/bepa/episodes:9")
    page.focus(".strip button:nth-child(2)")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className") == "chosen"
    assert "step=2" in page.url
