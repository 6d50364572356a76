// Chooses the page by the address: #page?parameters.
"use strict";

(() => {
  const NAMES = { run: "Run", episodes: "Episodes", cache: "Cache" };
  const CHANGES_EVERY = 3000;  // milliseconds

  view.draw = async () => {
    const [name, query] = location.hash.slice(1).split("?");
    const chosen = name in view.pages ? name : view.runs.some((run) => run.methods.length) ? "run" : "episodes";
    const page = el("main", { id: "page", class: chosen });
    document.getElementById("page").replaceWith(page);
    document.getElementById("pages").replaceChildren(...Object.entries(NAMES).map(([key, label]) => el("a", { href: `#${key}`, "aria-current": key === chosen ? "page" : null }, label)));
    document.title = `${NAMES[chosen] ?? words(chosen)} – bepa view`;
    try {
      await view.pages[chosen](page, Object.fromEntries(new URLSearchParams(query ?? "")));
    } catch (error) {
      page.replaceChildren(el("p", { class: "warning" }, String(error.message)));
      throw error;
    }
    page.dataset.ready = "yes";
    performance.mark("drawn");
  };

  /** Follows a run that goes on: the server of bepa view --serve counts its changes. */
  async function follow() {
    const state = document.getElementById("state");
    try {
      const answer = await fetch("changes");
      if (!answer.ok) return;  // another server, of a folder of pages
      const changes = Number(await answer.text());
      if (changes !== view.version) {
        view.version = changes;
        await view.loadIndex();
        await view.draw();
      }
      state.textContent = view.runs.some((run) => run.state === "running") ? "following the run" : "";
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
