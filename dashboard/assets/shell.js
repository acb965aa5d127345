// The frame around the pages: addresses, arriving, what the reader likes to see, clicks. No data passes through here.
(function (app) {
  "use strict";

  const root = document.documentElement;
  // What the other files add: what buttons do, and what happens on each arrival.
  Object.assign(app, { actions: {}, arrivals: [] });

  // Which keys an address may have, in their order, and which of them links to other pages include; the server defines both.
  const keys = (name) => document.querySelector("[data-keys]").dataset[name].split(" ");

  app.query = () => new URLSearchParams(location.search);

  function written(query, names) {
    const pairs = names.filter((key) => query.get(key)).map((key) => [key, query.get(key)]);
    const text = new URLSearchParams(pairs).toString();
    return text ? "?" + text : "";
  }

  // This address with some keys changed; an empty value leaves the key out. The order is the server's.
  app.address = function (changes) {
    const query = app.query();
    Object.entries(changes).forEach(([key, value]) => (value ? query.set(key, value) : query.delete(key)));
    return location.pathname + written(query, keys("keys"));
  };

  // This address in the place of the last one, for what is updated without the page.
  app.replace = function (changes) {
    history.replaceState(history.state, "", app.address(changes));
    app.shows();
  };

  // The links of the page to itself were written for the query `was`: what has changed since changes in them too.
  app.relink = function (was) {
    const is = app.query();
    const changed = keys("keys").filter((key) => was.get(key) !== is.get(key));
    document.querySelectorAll("#root a[href^='/']:not(nav a)").forEach((link) => {
      const query = new URLSearchParams(link.search);
      const behind = link.pathname === location.pathname ? changed.filter((key) => query.get(key) === was.get(key)) : [];
      behind.forEach((key) => (is.get(key) ? query.set(key, is.get(key)) : query.delete(key)));
      if (behind.length) link.setAttribute("href", link.pathname + written(query, keys("keys")) + link.hash);
    });
  };

  // What of this address goes along to another page, with its "?".
  app.common = () => written(app.query(), keys("common"));

  // Another page in the same window.
  app.to = function (path, more) {
    const query = new URLSearchParams(app.common());
    Object.entries(more || {}).forEach(([key, value]) => query.set(key, value));
    return path + written(query, keys("keys"));
  };

  // A part of a path as a name: what `name_of_segment` in core/addresses.py does.
  app.named = (text) => decodeURIComponent(text).replace(/~([0-7][0-9A-F])/g, (_, code) => String.fromCharCode(parseInt(code, 16)));

  // The service this page is about.
  app.here = function () {
    const [, first, name] = location.pathname.split("/");
    return first === "s" && name ? app.named(name) : app.query().get("svc");
  };

  app.go = function (address) {
    // The parser would go on to write the page of the old address.
    if (document.readyState === "loading") return location.assign(address);
    const step = (history.state && history.state.step) || 0;
    history.replaceState({ step, top: scrollY }, "");
    history.pushState({ step: step + 1 }, "", address);
    app.open();
    app.closeMenus();
  };

  // Never out of the dashboard.
  app.back = () => history.state && history.state.step && history.back();

  app.closeMenus = (except) => {
    document.querySelectorAll(".menu[open]").forEach((menu) => menu.contains(except) || menu.removeAttribute("open"));
    const menu = document.querySelector(".side:popover-open");
    if (menu && !menu.contains(except)) menu.hidePopover();
  };

  // ---- arriving on a page

  let [isFirst, walked] = [true, false];
  addEventListener("popstate", () => (walked = true));

  // The first part of another page has arrived: what the reader does from now on counts.
  app.turn = function () {
    scrollTo(0, 0);
    if (!document.querySelector("dialog[open]")) document.getElementById("root").focus({ preventScroll: true });
  };

  // The page is complete. `turned`: it is another one than before.
  app.settle = function (turned) {
    if (turned && walked && !scrollY) scrollTo(0, (history.state && history.state.top) || 0);
    else if (isFirst && location.hash) {
      const chart = document.querySelector(`[data-chart="${CSS.escape(location.hash.slice(1))}"]`);
      if (chart) chart.closest(".card, [data-chart]").scrollIntoView({ block: "center" });
    }
    [isFirst, walked] = [false, false];
    marked();
    app.arrivals.forEach((listener) => listener());
  };

  function marked() {
    const query = app.query();
    const chosen = query.has("to") && query.get("to") !== "now" ? null : query.get("from") || "now-6h";
    document.querySelectorAll("[data-window]").forEach((item) => {
      item.setAttribute("aria-current", String(item.dataset.window === chosen));
    });
    pressed("refresh", query.get("refresh") !== "off");
    liked();
  }

  function pressed(name, on) {
    document.querySelectorAll(`[data-do=${name}]`).forEach((button) => button.setAttribute("aria-pressed", String(on)));
  }

  // ---- preferences of the reader, stored in this browser and never in an address; a change redraws, without a call to the server

  function like(name, value) {
    if (value) root.dataset[name] = value;
    else delete root.dataset[name];
    try {
      localStorage.setItem(`stagelens-${name}`, value);
    } catch (_) {
      // The choice then lasts as long as the page.
    }
    liked();
    app.redraw();
  }

  function liked() {
    const button = document.querySelector("[data-do=theme]");
    if (button) button.setAttribute("aria-label", `Switch to ${app.theme() === "dark" ? "light" : "dark"} theme`);
    pressed("patterns", app.patterned());
    pressed("density", root.dataset.density === "compact");
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    liked();
    app.redraw();
  });

  // Paper is white; charts out of view are drawn as well.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    app.redraw(true);
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    app.redraw();
  });

  Object.assign(app.actions, {
    theme: () => like("theme", app.theme() === "dark" ? "light" : "dark"),
    patterns() {
      app.patterns(!app.patterned());
      liked();
    },
    density: () => like("density", root.dataset.density === "compact" ? "" : "compact"),
    // Whoever opens the link later sees these very minutes; with Shift a window that ends now moves on.
    copy(event) {
      const [start, end] = app.window();
      const moves = !/^\d/.test(app.query().get("to") || "");
      const fixed = moves && !(event && event.shiftKey);
      const address = fixed ? app.address({ from: String(start), to: String(end) }) : location.pathname + location.search;
      const kind = fixed || !moves ? "fixed window" : `moving window, ${app.windowLabel().toLowerCase()}`;
      copied(location.origin + address, `Link copied: ${kind}`);
    },
    refresh() {
      const off = app.query().get("refresh") === "off";
      app.replace({ refresh: off ? "" : "off" });
      marked();
      app.announce(off ? "Refreshing every 15 s" : "Refresh is off");
    },
    // On narrow screens the side bar is a menu: all pages, services and actions.
    menu() {
      const side = document.getElementById("menu");
      if (side.matches(":popover-open")) return side.hidePopover();
      side.popover = "auto";
      side.showPopover();
      side.querySelector("button").focus();
      side.onclick = ({ target }) => target.closest("button[data-do]:not([data-do=menu])") && side.hidePopover();
      // Wider than a phone it is part of the page again.
      side.ontoggle = ({ newState }) => newState === "closed" && side.removeAttribute("popover");
    },
    help: () => document.getElementById("help").showModal(),
    close: (event) => event.target.closest("dialog").close(),
    reload: () => location.reload(),
    // One file that opens anywhere, also without a network.
    save() {
      const query = app.query();
      query.set("path", location.pathname);
      query.set("download", "1");
      location.assign(`/report?${query}`);
    },
  });

  app.copied = copied;
  function copied(text, summary) {
    const fallback = () => {
      // Without https there is no clipboard to write to, only the old way.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      app.announce(document.execCommand("copy") ? summary : "This browser does not allow copying");
      field.remove();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => app.announce(summary), fallback);
    else fallback();
  }

  let silence;
  app.announce = function (text) {
    const element = document.getElementById("announcement");
    element.textContent = text;
    element.classList.add("on");
    clearTimeout(silence);
    silence = setTimeout(() => element.classList.remove("on"), 2600);
  };

  // ---- clicks

  function redrawn(button) {
    [...button.parentElement.children].forEach((other) => {
      other.classList.toggle("on", other === button);
      other.setAttribute("aria-pressed", String(other === button));
    });
    app.replace({ [button.dataset.key]: button.dataset.value });
    app.ask(button.dataset.redraw);
  }

  document.addEventListener("click", (event) => {
    const on = (selector) => event.target.closest(selector);
    app.closeMenus(event.target);
    const action = on("[data-do]");
    if (action && app.actions[action.dataset.do]) app.actions[action.dataset.do](event, action);
    const control = on("button[data-key]");
    if (control && control.dataset.redraw) redrawn(control);
    else if (control) app.go(app.address({ [control.dataset.key]: control.dataset.value }));
    const item = on("[data-window]");
    if (item) app.go(app.address({ from: item.dataset.window === "now-6h" ? "" : item.dataset.window, to: "" }));
    const link = on("a[href^='/']:not([download], [target])");
    if (link && !event.defaultPrevented && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      app.go(link.getAttribute("href"));
    }
    const row = on("tr[data-href]");
    if (row && !on("a, button, input, details") && !getSelection().toString()) app.go(row.dataset.href);
    if (event.target.tagName === "DIALOG") event.target.close();
  });

  let narrow = innerWidth < 760;
  addEventListener("resize", () => {
    if (narrow !== innerWidth < 760) {
      narrow = !narrow;
      app.closeMenus();
      app.redraw();
    }
  });
})(window.stagelens);
