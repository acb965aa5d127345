// Keys, never inside a field. The sheet under "?" lists them; shell.py writes it.
(function (app) {
  "use strict";

  const PAGES = { o: "/", r: "/regressions", s: "/slo", i: "/incidents", t: "/traces", a: "/advice", e: "/events" };
  const KEYS = {
    d: app.actions.theme, c: app.actions.copy, C: app.actions.copy, "?": app.actions.help,
    "[": () => app.shift(-0.5), "]": () => app.shift(0.5), "-": () => app.widen(),
    0: () => app.latest(),
    t: () => app.openTime(),
    j: () => row(1), k: () => row(-1), ArrowDown: () => row(1), ArrowUp: () => row(-1),
    "/": () => filter(), Backspace: () => app.back(),
  };

  // The next or previous trace where one is open, else the next row of the page's tables.
  function row(step) {
    const beside = document.querySelector(step > 0 ? "a[data-next]" : "a[data-previous]");
    if (beside) return beside.click();
    const rows = [...document.querySelectorAll("main tbody tr[data-href]")].filter((line) => line.offsetParent && line.querySelector("a"));
    const here = rows.findIndex((line) => line.contains(document.activeElement));
    const next = rows[Math.max(0, Math.min(rows.length - 1, here + step))];
    if (next) next.querySelector("a").focus();
  }

  function filter() {
    const field = document.querySelector("main input[type=search], main input[type=text]");
    if (field) field.focus();
    else app.actions.jump();
  }

  const ARROWS = ["ArrowDown", "ArrowUp"];
  let first = "";
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") {
      event.preventDefault();
      app.actions.jump();
      return;
    }
    if (event.key === "Escape") {
      const menu = document.querySelector(".menu[open]");
      if (menu && menu.contains(document.activeElement)) menu.querySelector("summary").focus();
      app.closeMenus();
    }
    const field = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.metaKey || event.ctrlKey || event.altKey || field || document.querySelector("dialog[open]")) return;
    // Arrows scroll the page, or a table, unless a row is chosen already.
    if (ARROWS.includes(event.key) && !document.activeElement.closest("tr[data-href]")) return;
    const went = first === "g" && PAGES[event.key];
    first = went ? "" : event.key;
    if (went) app.go(app.to(went));
    else if (Object.hasOwn(KEYS, event.key)) {
      event.preventDefault();
      KEYS[event.key](event);
    }
  });
})(window.stagelens);
