// The page of the address: its arrival, its refresh (never twice at once, never while somebody reads, slower while nothing comes),
// and what is said, and done, while the dashboard does not answer.
(function (app) {
  "use strict";

  const html = document.documentElement;
  const BEAT = 15000;
  // So often it is asked whether the dashboard is there, and so long an answer may take. [ms]
  const CHECK = 4000;
  const PATIENCE = 60000;
  const SLOWEST = PATIENCE / BEAT;

  const frozen = () => app.query().get("refresh") === "off" || (app.query().get("to") || "now") !== "now";
  const busy = () => document.visibilityState !== "visible"
    || document.querySelector(".plot:hover, .menu[open], dialog[open], :popover-open, main input:focus");

  // The state of the page that is shown, as the server sent it, and the last beat for which a refresh was requested.
  let [seen, tick, beats] = [null, null, 0];
  // Aborts the last request for a page.
  let last = new AbortController();
  const here = () => location.pathname + location.search;
  // The address that was requested last.
  let requested = here();

  // While a page is on its way, what is left of the old one is dimmed.
  let due = 0;
  function waiting(more) {
    due += more;
    document.getElementById("root").setAttribute("aria-busy", String(due > 0));
    if (!due) delete html.dataset.loading;
  }

  // `known`: the state of the page that is shown, if it is enough to get what differs from it. The last request counts.
  async function load(known) {
    const panels = known ? [] : affected();
    if (panels.length) return update(panels);
    const query = new URLSearchParams(location.search);
    query.set("path", location.pathname);
    if (known) query.set("seen", JSON.stringify(known));
    last.abort();
    const { signal } = (last = new AbortController());
    requested = here();
    waiting(1);
    try {
      const answer = await fetch(`/parts?${query}`, { signal });
      if (answer.ok) await receive(answer.body.pipeThrough(new TextDecoderStream()).getReader(), signal);
    } catch (_) {
      // `window.fetch` below, or the next probe, says what is wrong.
    } finally {
      waiting(-1);
    }
  }

  // The panels in which this address differs from the one that is shown; none where all of the page may differ.
  function affected() {
    const [was, is] = [new URLSearchParams(shownAt.split("?")[1] || ""), app.query()];
    const changed = [...new Set([...was.keys(), ...is.keys()])].filter((key) => was.get(key) !== is.get(key));
    const panels = [...document.querySelectorAll("#root [data-needs]")].map((each) => [each.dataset.part, each.dataset.needs.split(" ")]);
    if (shown !== location.pathname || due || !changed.every((key) => panels.some(([, needs]) => needs.includes(key)))) return [];
    return panels.filter(([, needs]) => needs.some((key) => changed.includes(key))).map(([name]) => name);
  }

  // What differs is asked for alone: the rest of the page stays, and is not dimmed.
  async function update(panels) {
    const query = new URLSearchParams(location.search);
    query.set("path", location.pathname);
    panels.forEach((each) => query.append("only", each));
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

  // The page stands for this address now: what differs was put there. Its links go along.
  app.shows = function () {
    if (shown !== location.pathname) return;
    app.relink(new URLSearchParams(shownAt.split("?")[1] || ""));
    shownAt = here();
  };

  async function receive(text, signal) {
    const same = shown === location.pathname;
    const page = app.arrival(same);
    let begun = false;
    for (let piece = {}; !piece.done; ) {
      piece = await text.read();
      if (signal.aborted) return;
      if (!page.take(piece.value || "", piece.done) || begun) continue;
      begun = true;
      if (!same) turn();
    }
    const state = page.end();
    seen = state && { ...state, beat: tick && tick.beat };
    if (begun) arrived(!same);
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

  // How many beats one refresh takes: 1 while data comes, twice as many each time that nothing did.
  let [pace, passed, judged, revision] = [1, 0, null, null];
  function judge(seen) {
    if (!seen || judged === seen.beat) return;
    const still = seen.revision === revision && !document.querySelector(".wait");
    pace = still ? Math.min(2 * pace, SLOWEST) : 1;
    [judged, revision, passed] = [seen.beat, seen.revision, 0];
  }

  // Return the tick of a refresh at beat `count`; null for none.
  app.beat = function (count, tick, seen) {
    const due = tick && (!seen || seen.beat !== tick.beat) && Date.now() - tick.at < PATIENCE;
    if (!count || busy() || (!lostAt && (frozen() || due))) return null;
    if (!lostAt) judge(seen);
    passed += 1;
    if (passed < pace) return null;
    passed = 0;
    if (!lostAt) return { beat: count, at: Date.now() };
    probe();
    return null;
  };

  function refresh(next) {
    if (!next) return;
    tick = next;
    load(seen);
  }

  app.refresh = () => refresh({ beat: Date.now(), at: Date.now() });
  setInterval(() => refresh(app.beat((beats += 1), tick, seen)), BEAT);

  let hiddenAt = 0;
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState !== "visible") hiddenAt = Date.now();
    else if (lostAt) probe();
    else if (hiddenAt && Date.now() - hiddenAt > BEAT && !frozen()) app.refresh();
  });

  // ---- no answer

  let lostAt = null;
  function told(...parts) {
    const place = document.getElementById("lost");
    place.replaceChildren(...parts);
    place.className = parts.length ? "banner" : "";
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
      pace = Math.min(2 * pace, SLOWEST);
      return;
    }
    lostAt = new Date();
    [pace, passed] = [1, 0];
    stay();
    const time = lostAt.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: app.zone() });
    const why = navigator.onLine ? "The dashboard does not respond" : "This browser has no network";
    told(...words(`Offline since ${time}, last data shown.`, `${why}; retrying automatically.`, "probe", "Try now"));
  }

  // The address stays that of the page that is shown; where the reader wanted to go is gone to once there is an answer.
  let wanted = "";
  function stay() {
    if (!shown || shown === location.pathname) return;
    wanted = location.pathname + location.search;
    history.replaceState(history.state, "", shownAt);
    app.said(`Offline: ${app.named(wanted.split("?")[0])} opens when the dashboard responds again`);
  }

  // What was asked for meanwhile is shown, whether or not there is new data.
  function found() {
    if (!lostAt) return;
    lostAt = null;
    [pace, passed] = [1, 0];
    told();
    seen = null;
    const to = wanted;
    wanted = "";
    if (to) app.go(to);
    else app.refresh();
  }

  // Asked for by a reader who goes to another page while it is known that nobody answers.
  function away() {
    lost();
    stay();
  }

  const asked = window.fetch;
  const WENT = [502, 503, 504];
  function probe() {
    asked.call(window, "/healthz", { cache: "no-store", signal: AbortSignal.timeout(CHECK) }).then((answer) => (WENT.includes(answer.status) ? lost() : found()), lost);
  }
  app.actions.probe = probe;
  setInterval(() => document.visibilityState === "visible" && probe(), CHECK);
  addEventListener("online", probe);
  addEventListener("offline", lost);

  // All requests pass here.
  window.fetch = function (address, options) {
    const answer = asked.call(window, address, options);
    if (/^\/(parts\?|figures\/)/.test(address)) {
      answer.then((response) => {
        if (response.status === 401) told(...words("You are signed out.", "The last data stays visible.", "reload", "Sign in"));
        else if (WENT.includes(response.status)) away();
        else found();
      }, (error) => error.name === "AbortError" || away());
    }
    return answer;
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
    if (state) seen = { ...JSON.parse(state.textContent), beat: null };
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
