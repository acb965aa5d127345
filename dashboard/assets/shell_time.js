// The window of the page: the keys that move it, and the menu of ranges.
(function (app) {
  "use strict";

  const MINUTE = 6e4;
  const LONGEST = 400 * 24 * 60 * MINUTE;

  // ---- the window of the page

  const menu = () => document.querySelector(".menu.time");
  // The zone of the times on the page: UTC, where it was chosen or the server does not know the browser's, else the browser's.
  app.zone = () => menu().dataset.zone;
  const isUtc = () => app.zone() === "UTC";
  const isLive = () => (app.query().get("to") || "now") === "now";

  app.window = () => [+menu().dataset.start, +menu().dataset.end];
  app.windowLabel = () => menu().querySelector("summary").textContent;

  // The server's clock counts: the reader's may be wrong. The page may be used before it has wholly arrived.
  let ahead = null;
  function compareClocks() {
    const now = menu() && +menu().dataset.now;
    if (now) ahead = now - Date.now();
  }
  app.arrivals.push(compareClocks);
  app.now = function () {
    if (ahead === null) compareClocks();
    return Date.now() + ahead;
  };

  // The newest whole bucket is the end of what there is.
  const isNewest = (moment) => moment >= app.now() - 15e3;

  // Pages about one thing, such as a trace, have no window.
  const hasWindow = () => menu().dataset.controls.split(" ").includes("time");

  function show(window) {
    if (!hasWindow()) return app.announce("This page has no time range");
    app.go(app.address({ from: window.from === "now-6h" ? "" : window.from, to: window.to }));
  }

  app.shift = function (share) {
    const [start, end] = app.window();
    const length = end - start;
    if (share > 0 && isLive()) return app.announce("This is the newest data");
    if (isNewest(end + share * length)) return show({ from: `now-${app.written(length)}`, to: "" });
    return show({ from: String(Math.round(start + share * length)), to: String(Math.round(end + share * length)) });
  };

  app.widen = function () {
    const [start, end] = app.window();
    const length = Math.min(2 * (end - start), LONGEST);
    const last = Math.round(end + length / 4);
    if (isLive()) show({ from: `now-${app.written(length)}`, to: "" });
    else show({ from: String(last - length), to: isNewest(last) ? "" : String(last) });
  };

  app.latest = () => show({ from: "", to: "" });

  app.actions.earlier = () => app.shift(-0.5);
  app.actions.later = () => app.shift(0.5);

  // ---- the menu: the server writes no fields, so they are created when it opens

  const STORAGE_KEY = "stagelens-windows";
  function lately() {
    try {
      return JSON.parse(localStorage.getItem(STORAGE_KEY)) || [];
    } catch (_) {
      return [];
    }
  }

  function remember(window) {
    const rest = lately().filter((recent) => recent.from !== window.from || recent.to !== window.to);
    try {
      localStorage.setItem(STORAGE_KEY, JSON.stringify([window, ...rest].slice(0, 5)));
    } catch (_) {
      // Without storage there are no last ranges.
    }
  }

  function label({ from, to }) {
    if (from.startsWith("now-")) return `Last ${from.slice(4).replace(/(\D)/, "\u202f$1")}`;
    const zone = { timeZone: app.zone() };
    const day = (moment) => new Date(moment).toLocaleDateString("en-GB", { day: "numeric", month: "short", ...zone });
    const time = (moment) => new Date(moment).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...zone });
    const last = to ? (day(+to) === day(+from) ? "" : `${day(+to)} `) + time(+to) : "now";
    return `${day(+from)} ${time(+from)} to ${last}`;
  }

  const FORM = `<form><label>Range<input name="text" autocomplete="off" spellcheck="false" placeholder="3h, yesterday, 14:00-15:30" aria-describedby="understood"></label>
    <p id="understood" class="hint"></p></form>
    <form class="two"><label>From<input name="from" type="datetime-local" required></label><label>To<input name="to" type="datetime-local" required></label>
    <button class="btn">Show</button></form><div class="lately"></div>`;

  function filled(container) {
    container.innerHTML = FORM;
    const [typed, picked] = container.querySelectorAll("form");
    typed.elements.text.addEventListener("input", () => understood(typed));
    typed.addEventListener("submit", (event) => submitted(event, typed, typed.elements.text.value));
    picked.addEventListener("submit", (event) => submitted(event, typed, [...picked.querySelectorAll("input")].map(instant).join(" to ")));
    const wall = (moment) => new Date(isUtc() ? moment : moment - new Date(moment).getTimezoneOffset() * MINUTE).toISOString().slice(0, 16);
    // An unchanged end of the window stays the same instant, also in an hour that exists twice.
    const instant = (field) => (field.value === field.defaultValue ? field.dataset.at : field.value);
    picked.querySelectorAll("input").forEach((field, end) => {
      field.dataset.at = app.window()[end];
      field.defaultValue = wall(app.window()[end]);
    });
    container.querySelector(".lately").replaceChildren(...lately().map((window) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label(window);
      button.addEventListener("click", () => show(window));
      return button;
    }));
  }

  function understood(form, text = form.elements.text.value) {
    const range = text.trim() ? app.windowOf(text, app.now(), isUtc()) : null;
    const hint = form.querySelector(".hint");
    hint.textContent = !range ? "" : range.wrong || label(range);
    hint.classList.toggle("bad", Boolean(range && range.wrong));
    form.elements.text.setAttribute("aria-invalid", String(Boolean(range && range.wrong)));
    return range;
  }

  function submitted(event, form, text) {
    event.preventDefault();
    const range = understood(form, text);
    if (!range || range.wrong) return;
    remember(range);
    show(range);
  }

  // `toggle` does not bubble, it is only captured.
  let opened = null;
  document.addEventListener("toggle", (event) => {
    if (event.target !== menu()) return;
    opened = event.target.open ? event.target : null;
    if (opened && hasWindow() && !opened.querySelector("form")) filled(opened.querySelector(".ranges"));
  }, true);

  app.openTime = function (text) {
    if (!hasWindow()) return app.announce("This page has no time range");
    opened = menu();
    opened.setAttribute("open", "");
    filled(opened.querySelector(".ranges"));
    const field = opened.querySelector("input");
    if (text) field.value = text;
    field.focus();
  };

  // An answer that was under way builds the menu anew; who types in it goes on.
  app.arrivals.push(() => opened && !opened.isConnected && app.openTime((opened.querySelector("input") || {}).value));
})(window.stagelens);
