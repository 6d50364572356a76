// Chooses the page by the address: #page?parameters.
"use strict";

(() => {
  const NAMES = { run: "Run", episodes: "Episodes", cache: "Cache" };
  const PARTS = { episode: "Episode", group: "Group", update: "Update" };
  const CHANGES_EVERY = 3000;  // milliseconds
  const UNREADABLE = 503;  // the status of an answer that says why the runs cannot be read

  view.draw = async () => {
    const [name, query] = location.hash.slice(1).split("?");
    const chosen = Object.hasOwn(view.pages, name) ? name : view.runs.some((run) => run.methods.length) ? "run" : "episodes";
    const page = el("main", { id: "page", class: chosen });
    document.getElementById("page").replaceWith(page);
    document.getElementById("pages").replaceChildren(...Object.entries(NAMES).map(([key, label]) => el("a", { href: `#${key}`, "aria-current": key === chosen ? "page" : null }, label)));
    document.title = `${NAMES[chosen] ?? PARTS[chosen]} – bepa view`;
    try {
      await view.pages[chosen](page, Object.fromEntries(new URLSearchParams(query ?? "")));
    } catch (error) {
      page.replaceChildren(el("p", { class: "warning" }, String(error.message)));
      throw error;
    }
    const heading = page.querySelector("h1");
    if (heading && page.isConnected) document.title = `${PARTS[chosen]}: ${heading.textContent} – bepa view`;
    page.dataset.ready = "yes";
    performance.mark("drawn");
  };

  const SCROLLED = ["#page", "#page .long-table", "#page .window", "#page .scroll", "#page .strip", "#page .field", "#page details"];
  const partsOf = (name) => [...document.querySelectorAll(name)];
  const nextFrame = () => new Promise((resolve) => { requestAnimationFrame(resolve); });
  let held = false;  // whether a button of the mouse or a finger is down: something is dragged

  /** What tells an element of the page from the others, in this drawing and in the next one. */
  function markOf(element) {
    const own = element.getAttribute("name") ?? element.getAttribute("href") ?? element.labels?.[0]?.textContent;
    return `${element.tagName} ${own ?? (element.tagName === "DIV" ? element.className : element.textContent)}`;
  }

  const alike = (mark, tag) => partsOf(`#page ${tag}`).filter((element) => markOf(element) === mark);

  /**
   * Draws the page again with new data, where its reader was: what is scrolled how far, which plan is closed, and the
   * element with the keyboard's focus.
   */
  async function drawAgain() {
    const places = SCROLLED.flatMap((name) => partsOf(name).map((part, index) => [name, index, part.scrollTop, part.scrollLeft, part.open]));
    const focused = document.getElementById("page").contains(document.activeElement) ? document.activeElement : null;
    const mark = focused && markOf(focused);
    const number = focused && alike(mark, focused.tagName).indexOf(focused);
    const selection = [focused?.selectionStart, focused?.selectionEnd];
    const before = location.hash;
    await view.draw();
    if (location.hash.split("?")[0] !== before.split("?")[0]) return;
    for (const [name, index, top, left, open] of places) {
      const part = partsOf(name)[index];
      if (open !== undefined && part) part.open = open;
      part?.scrollTo(left, top);
    }
    if (!focused) return;
    if (typeof selection[0] !== "number") {  // a field gets the focus back at once: its reader may be typing
      await nextFrame();  // the lines of the table follow its scrolling
      await nextFrame();
    }
    const found = alike(mark, focused.tagName);
    const again = found[number] ?? found[0];
    if (!again || document.activeElement !== document.body) return;
    again.focus({ preventScroll: true });
    if (typeof selection[0] === "number") again.setSelectionRange(...selection);
  }

  for (const [name, down] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
    window.addEventListener(name, () => { held = down; }, true);
  }

  /** Follows a run that goes on: the server of bepa view --serve counts its changes. */
  async function follow() {
    const state = document.getElementById("state");
    try {
      const answer = await fetch("changes");
      if (!answer.ok && answer.status !== UNREADABLE) return;  // another server, of a folder of pages
      const text = await answer.text();
      const changes = answer.ok ? Number(text) : view.version;
      const list = document.activeElement?.tagName === "SELECT";  // to draw again would close it
      if (changes !== view.version && !held && !list) {
        view.version = changes;
        await view.loadIndex();
        await drawAgain();
      }
      state.textContent = !answer.ok ? visible(text) : changes !== view.version && list ? "new data are shown when the list is left" : view.runs.some((run) => run.state === "running") ? "following the run" : "";
    } catch {
      state.textContent = "the server has ended";
    }
    setTimeout(follow, CHANGES_EVERY);
  }

  async function begin() {
    await view.loadIndex();
    await view.draw();
    window.addEventListener("hashchange", view.draw);
    if (location.protocol !== "file:") follow();
  }

  begin().catch((error) => {
    document.getElementById("page").replaceChildren(el("p", { class: "warning" }, String(error.message)));
    throw error;
  });
})();
