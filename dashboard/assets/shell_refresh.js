// Loads the page of the address, refreshes it (one request at a time, not while the reader uses it, less often without new data), and
// reports when the dashboard does not respond.
(function (app) {
  "use strict";

  const html = document.documentElement;
  const REFRESH_MS = 15000;
  // Interval and timeout of the health check.
  const CHECK_MS = 4000;
  const TIMEOUT_MS = 60000;
  const MAX_PACE = TIMEOUT_MS / REFRESH_MS;

  const frozen = () => app.query().get("refresh") === "off" || (app.query().get("to") || "now") !== "now";
  const busy = () => document.visibilityState !== "visible"
    || document.querySelector(".plot:hover, .menu[open], dialog[open], :popover-open, main input:focus");

  // The state of the page that is shown, as the server sent it, the last refresh, and the number of intervals.
  let [seen, lastRefresh, intervals] = [null, null, 0];
  // Aborts the last request for a page.
  let last = new AbortController();
  const here = () => location.pathname + location.search;
  // The address that was requested last.
  let requested = here();

  // The old page is dimmed while the next one loads.
  let due = 0;
  function waiting(more) {
    due += more;
    document.getElementById("root").setAttribute("aria-busy", String(due > 0));
    if (!due) delete html.dataset.loading;
  }

  // `state`: the state of the page that is shown, if it is enough to get what differs from it. The last request counts.
  async function load(state) {
    const panels = state ? [] : affected();
    if (panels.length) return update(panels);
    const query = new URLSearchParams(location.search);
    query.set("path", location.pathname);
    if (state) query.set("seen", JSON.stringify(state));
    last.abort();
    const { signal } = (last = new AbortController());
    requested = here();
    waiting(1);
    try {
      const answer = await fetch(`/parts?${query}`, { signal });
      if (answer.ok) await receive(answer.body.pipeThrough(new TextDecoderStream()).getReader(), signal);
    } catch (_) {
      // `window.fetch` below, or the next probe, reports the error.
    } finally {
      waiting(-1);
    }
  }

  // The panels in which this address differs from the one that is shown; none where all of the page may differ.
  function affected() {
    const [was, is] = [new URLSearchParams(shownAt.split("?")[1] || ""), app.query()];
    const changed = [...new Set([...was.keys(), ...is.keys()])].filter((key) => was.get(key) !== is.get(key));
    const panels = [...document.querySelectorAll("#root [data-needs]")].map((panel) => [panel.dataset.part, panel.dataset.needs.split(" ")]);
    if (shown !== location.pathname || due || !changed.every((key) => panels.some(([, needs]) => needs.includes(key)))) return [];
    return panels.filter(([, needs]) => needs.some((key) => changed.includes(key))).map(([name]) => name);
  }

  // Request only the panels that differ: the rest of the page stays, and is not dimmed.
  async function update(panels) {
    const query = new URLSearchParams(location.search);
    query.set("path", location.pathname);
    panels.forEach((name) => query.append("only", name));
    last.abort();
    const { signal } = (last = new AbortController());
    requested = here();
    try {
      const answer = await fetch(`/parts?${query}`, { signal });
      const text = await answer.text();
      if (!answer.ok || signal.aborted) return;
      app.shows();
      const { address } = app.placePanels(text);
      if (seen) seen.address = address;
      app.relight();
    } catch (_) {
      // As above.
    }
  }

  // Use this address as that of the page after an update of its panels, and change its links.
  app.shows = function () {
    if (shown !== location.pathname) return;
    app.relink(new URLSearchParams(shownAt.split("?")[1] || ""));
    shownAt = here();
  };

  async function receive(text, signal) {
    const same = shown === location.pathname;
    const page = app.arrival(same);
    let hasPage = false;
    for (let piece = {}; !piece.done; ) {
      piece = await text.read();
      if (signal.aborted) return;
      if (!page.take(piece.value || "", piece.done) || hasPage) continue;
      hasPage = true;
      if (!same) turn();
    }
    const state = page.end();
    seen = state && { ...state, interval: lastRefresh && lastRefresh.interval };
    if (hasPage) arrived(!same);
  }

  // The first part of another page has replaced the old page.
  function turn() {
    shown = null;
    html.dataset.loading = "";
    document.title = document.querySelector("#root [data-title]").dataset.title;
    // The server's navigation comes last, because it is about all services.
    document.querySelectorAll("#side .nav, #mobnav a").forEach((entry) => entry.classList.toggle("on", entry.pathname === location.pathname));
    app.turn();
  }

  app.open = () => load(null);
  // A link to a place on the page changes only the fragment.
  addEventListener("popstate", () => here() !== requested && app.open());

  // Number of intervals until the next refresh: 1 while data arrives, twice as many after each refresh without new data.
  let [pace, passed, measured, revision] = [1, 0, null, null];
  function setPace(seen) {
    if (!seen || measured === seen.interval) return;
    const still = seen.revision === revision && !document.querySelector(".wait");
    pace = still ? Math.min(2 * pace, MAX_PACE) : 1;
    [measured, revision, passed] = [seen.interval, seen.revision, 0];
  }

  // Return the refresh that is due in interval `count`; null for none.
  app.dueRefresh = function (count, lastRefresh, seen) {
    const running = lastRefresh && (!seen || seen.interval !== lastRefresh.interval) && Date.now() - lastRefresh.at < TIMEOUT_MS;
    if (!count || busy() || (!lostAt && (frozen() || running))) return null;
    if (!lostAt) setPace(seen);
    passed += 1;
    if (passed < pace) return null;
    passed = 0;
    if (!lostAt) return { interval: count, at: Date.now() };
    probe();
    return null;
  };

  function refresh(next) {
    if (!next) return;
    lastRefresh = next;
    load(seen);
  }

  app.refresh = () => refresh({ interval: Date.now(), at: Date.now() });
  setInterval(() => refresh(app.dueRefresh((intervals += 1), lastRefresh, seen)), REFRESH_MS);

  let hiddenAt = 0;
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState !== "visible") hiddenAt = Date.now();
    else if (lostAt) probe();
    else if (hiddenAt && Date.now() - hiddenAt > REFRESH_MS && !frozen()) app.refresh();
  });

  // ---- no response

  let lostAt = null;
  function showBanner(...parts) {
    const banner = document.getElementById("lost");
    banner.replaceChildren(...parts);
    banner.className = parts.length ? "banner" : "";
  }

  function words(strong, text, action, label) {
    const [bold, button] = [document.createElement("b"), document.createElement("button")];
    bold.textContent = strong;
    Object.assign(button, { type: "button", className: "btn", textContent: label });
    button.dataset.do = action;
    return [bold, text, button];
  }

  function lost() {
    if (lostAt) {
      pace = Math.min(2 * pace, MAX_PACE);
      return;
    }
    lostAt = new Date();
    [pace, passed] = [1, 0];
    stay();
    const time = lostAt.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: app.zone() });
    const why = navigator.onLine ? "The dashboard does not respond" : "This browser has no network";
    showBanner(...words(`Offline since ${time}, last data shown.`, `${why}; retrying automatically.`, "probe", "Try now"));
  }

  // Keep the address of the page that is shown; the wanted page opens when the dashboard responds.
  let wanted = "";
  function stay() {
    if (!shown || shown === location.pathname) return;
    wanted = location.pathname + location.search;
    history.replaceState(history.state, "", shownAt);
    app.announce(`Offline: ${app.named(wanted.split("?")[0])} opens when the dashboard responds again`);
  }

  // Open the wanted page, or refresh, also without new data.
  function recovered() {
    if (!lostAt) return;
    lostAt = null;
    [pace, passed] = [1, 0];
    showBanner();
    seen = null;
    const to = wanted;
    wanted = "";
    if (to) app.go(to);
    else app.refresh();
  }

  // A reader opened another page while the dashboard does not respond.
  function lostOnTheWay() {
    lost();
    stay();
  }

  const browserFetch = window.fetch;
  const UNAVAILABLE = [502, 503, 504];
  function probe() {
    browserFetch.call(window, "/healthz", { cache: "no-store", signal: AbortSignal.timeout(CHECK_MS) }).then((response) => (UNAVAILABLE.includes(response.status) ? lost() : recovered()), lost);
  }
  app.actions.probe = probe;
  setInterval(() => document.visibilityState === "visible" && probe(), CHECK_MS);
  addEventListener("online", probe);
  addEventListener("offline", lost);

  // All requests pass here.
  window.fetch = function (address, options) {
    const response = browserFetch.call(window, address, options);
    if (/^\/(parts\?|figures\/)/.test(address)) {
      response.then((response) => {
        if (response.status === 401) showBanner(...words("You are signed out.", "The last data stays visible.", "reload", "Sign in"));
        else if (UNAVAILABLE.includes(response.status)) lostOnTheWay();
        else recovered();
      }, (error) => error.name === "AbortError" || lostOnTheWay());
    }
    return response;
  };

  // ---- arriving

  let [shown, shownAt] = [null, ""];
  function arrived(turned) {
    [shown, shownAt] = [location.pathname, here()];
    const page = document.querySelector("#root [data-title]");
    // Without a page the connection was lost; the next refresh brings it.
    if (page) document.title = page.dataset.title;
    app.settle(turned);
    app.relight();
  }

  // The first page comes with the document; its charts are drawn as they come.
  const arriving = new MutationObserver(() => app.drawNew());
  arriving.observe(document.documentElement, { childList: true, subtree: true });
  function begin() {
    arriving.disconnect();
    const state = document.getElementById("seen");
    if (state) seen = { ...JSON.parse(state.textContent), interval: null };
    app.drawNew();
    arrived(false);
    if (html.dataset.zone) app.open();
    delete html.dataset.zone;
    delete html.dataset.loading;
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  // After the other files, which are in this script: what has arrived before it.
  queueMicrotask(() => (document.readyState === "loading" ? app.drawNew() : begin()));
})(window.stagelens);
