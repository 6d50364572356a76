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

  /** Draws the page again with new data, where its reader was: what is scrolled how far, and the field in use. */
  async function drawAgain() {
    const old = document.getElementById("page");
    const scrolled = ["#page", ".window", ".scroll"].map((name) => [name, document.querySelector(name)?.scrollTop ?? 0, document.querySelector(name)?.scrollLeft ?? 0]);
    const field = document.activeElement;
    const name = old.contains(field) ? field.name : "";
    const selection = name ? [field.selectionStart, field.selectionEnd] : [];
    const before = location.hash;
    await view.draw();
    if (location.hash.split("?")[0] !== before.split("?")[0]) return;
    for (const [part, top, left] of scrolled) document.querySelector(part)?.scrollTo(left, top);
    const again = name && document.querySelector(`#page [name="${name}"]`);
    if (!again) return;
    again.focus({ preventScroll: true });
    if (typeof selection[0] === "number") again.setSelectionRange(...selection);
  }

  /** Follows a run that goes on: the server of bepa view --serve counts its changes. */
  async function follow() {
    const state = document.getElementById("state");
    try {
      const answer = await fetch("changes");
      if (!answer.ok && answer.status !== UNREADABLE) return;  // another server, of a folder of pages
      const text = await answer.text();
      const changes = answer.ok ? Number(text) : view.version;
      if (changes !== view.version) {
        view.version = changes;
        await view.loadIndex();
        await drawAgain();
      }
      state.textContent = !answer.ok ? visible(text) : view.runs.some((run) => run.state === "running") ? "following the run" : "";
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
