// The frame around the pages: addresses, theme, menus, keys. No data passes through here.
(function (app) {
  "use strict";

  const root = document.documentElement;
  const ORDER = ["svc", "a", "b", "p", "y", "x", "t", "by", "v", "dom", "err", "min", "w", "env", "from", "to", "tz", "refresh"];

  // This address with some keys changed; an empty value leaves the key out. The order is the server's.
  app.address = function (changes) {
    const query = new URLSearchParams(location.search);
    Object.entries(changes).forEach(([key, value]) => (value ? query.set(key, value) : query.delete(key)));
    const pairs = ORDER.filter((key) => query.get(key)).map((key) => [key, query.get(key)]);
    const text = new URLSearchParams(pairs).toString();
    return location.pathname + (text ? "?" + text : "");
  };

  app.go = function (address) {
    history.pushState({}, "", address);
    // What dcc.Link does: dcc.Location listens for it.
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    document.querySelectorAll(".menu[open]").forEach((menu) => menu.removeAttribute("open"));
  };

  // ---- arriving on a page

  let lastPath = null;
  app.settle = function () {
    if (lastPath !== null && lastPath !== location.pathname) {
      scrollTo(0, 0);
      const main = document.getElementById("root");
      if (document.activeElement === document.body || !document.activeElement.isConnected) main.focus({ preventScroll: true });
    }
    lastPath = location.pathname;
    marked();
  };

  function marked() {
    const query = new URLSearchParams(location.search);
    const chosen = query.has("to") && query.get("to") !== "now" ? null : query.get("from") || "now-6h";
    document.querySelectorAll("[data-window]").forEach((item) => {
      item.setAttribute("aria-current", String(item.dataset.window === chosen));
    });
    const refresh = document.querySelector("[data-do=refresh]");
    if (refresh) refresh.setAttribute("aria-pressed", String(query.get("refresh") !== "off"));
  }

  // ---- theme: a redraw in the browser, no call to the server

  function themed() {
    const button = document.querySelector("[data-do=theme]");
    if (button) button.setAttribute("aria-label", `Switch to ${app.theme() === "dark" ? "light" : "dark"} theme`);
    app.redraw();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

  const ACTIONS = {
    theme() {
      root.dataset.theme = app.theme() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("stagelens-theme", root.dataset.theme);
      } catch (_) {
        // The choice then lasts as long as the page.
      }
      themed();
    },
    copy() {
      if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(() => said("Link copied"));
    },
    refresh() {
      const off = new URLSearchParams(location.search).get("refresh") === "off";
      history.replaceState(history.state, "", app.address({ refresh: off ? "" : "off" }));
      marked();
      said(off ? "Refreshing every 15 s" : "Refresh is off");
    },
    jump() { jump(); },
    help() { document.getElementById("help").showModal(); },
    reload() { location.reload(); },
  };

  function said(text) {
    const place = document.getElementById("said");
    place.textContent = text;
    place.classList.add("on");
    clearTimeout(said.timer);
    said.timer = setTimeout(() => place.classList.remove("on"), 1600);
  }

  // ---- moving in time

  function windowNow() {
    const menu = document.querySelector(".menu.time");
    return menu ? [+menu.dataset.start, +menu.dataset.end] : null;
  }
  function moved(shift, grow) {
    const now = windowNow();
    if (!now) return;
    const length = now[1] - now[0];
    const start = now[0] + shift * length - grow * length;
    const end = Math.min(now[1] + shift * length + grow * length, Date.now());
    app.go(app.address({ from: String(Math.round(start)), to: String(Math.round(end)) }));
  }

  // ---- jump: services and pages by name

  // The field is ours and not React's: a component that is rendered anew while somebody types loses letters.
  function jumpField(box) {
    let field = box.querySelector("input");
    if (field) return field;
    field = document.createElement("input");
    field.type = "text";
    field.autocomplete = "off";
    field.placeholder = "Service, page or trace id";
    field.setAttribute("aria-label", "Service, page or trace id");
    field.addEventListener("input", () => listed(box));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        const [found] = listed(box);
        if (found) {
          box.close();
          app.go(found[1]);
        }
      } else if (event.key === "ArrowDown") {
        event.preventDefault();
        const link = box.querySelector("ul a");
        if (link) link.focus();
      }
    });
    box.prepend(field);
    return field;
  }

  function listed(box) {
    const text = box.querySelector("input").value.trim().toLowerCase();
    const links = [...document.querySelectorAll("#side a[data-name]")].map((link) => [link.dataset.name, link.getAttribute("href")]);
    const found = links.filter(([name]) => name.toLowerCase().includes(text));
    if (/^[0-9a-f]{8,32}(-[0-9a-f]{16})?$/.test(text)) found.unshift([`Trace ${text}`, `/traces/${text}`]);
    const items = found.slice(0, 12).map(([name, href], index) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = href;
      link.textContent = name;
      link.className = index ? "" : "on";
      item.append(link);
      return item;
    });
    box.querySelector("ul").replaceChildren(...items);
    return found;
  }

  function jump() {
    const box = document.getElementById("jump");
    const field = jumpField(box);
    field.value = "";
    if (!box.open) box.showModal();
    field.focus();
    listed(box);
  }

  // ---- clicks

  function pressed(button) {
    const group = button.parentElement;
    [...group.children].forEach((each) => {
      each.classList.toggle("on", each === button);
      each.setAttribute("aria-pressed", String(each === button));
    });
    history.replaceState(history.state, "", app.address({ [button.dataset.key]: button.dataset.value }));
    const ask = { i: button.dataset.redraw, k: "ask" };
    window.dash_clientside.set_props(ask, { data: { search: location.search } });
  }

  document.addEventListener("click", (event) => {
    const on = (selector) => event.target.closest(selector);
    const action = on("[data-do]");
    if (action) ACTIONS[action.dataset.do]();
    const toggle = on("button[data-redraw]");
    if (toggle) pressed(toggle);
    const item = on("[data-window]");
    if (item) app.go(app.address({ from: item.dataset.window === "now-6h" ? "" : item.dataset.window, to: "" }));
    const link = on("#jump a");
    if (link) {
      event.preventDefault();
      document.getElementById("jump").close();
      app.go(link.getAttribute("href"));
    }
    const inside = on("a[href^='/']");
    if (inside && !link && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      app.go(inside.getAttribute("href"));
    }
    const row = on("tr[data-href]");
    if (row && !on("a") && !getSelection().toString()) app.go(row.dataset.href);
    if (event.target.tagName === "DIALOG") event.target.close();
    document.querySelectorAll(".menu[open]").forEach((menu) => menu.contains(event.target) || menu.removeAttribute("open"));
  });

  // ---- keys, never inside a field

  const PAGES = { o: "/", s: "/slo", t: "/traces", c: "/compare" };
  const KEYS = {
    d: ACTIONS.theme, c: ACTIONS.copy, "?": ACTIONS.help,
    "[": () => moved(-0.5, 0), "]": () => moved(0.5, 0), "-": () => moved(0, 0.5), 0: () => app.go(app.address({ from: "", to: "" })),
    t() {
      const menu = document.querySelector(".menu.time");
      menu.setAttribute("open", "");
      menu.querySelector("button").focus();
    },
    j: () => row(1), k: () => row(-1),
  };

  function row(step) {
    const step_link = document.querySelector(step > 0 ? "a[data-next]" : "a[data-previous]");
    if (step_link) return step_link.click();
    const links = [...document.querySelectorAll("main tbody tr[data-href] a")];
    if (links.length) links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + step))].focus();
  }

  let first = "";
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") {
      event.preventDefault();
      jump();
      return;
    }
    if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key === "Escape") document.querySelectorAll(".menu[open]").forEach((menu) => menu.removeAttribute("open"));
    if (first === "g" && PAGES[event.key]) {
      first = "";
      app.go(PAGES[event.key]);
      return;
    }
    first = event.key;
    if (KEYS[event.key] && !document.querySelector("dialog[open]")) KEYS[event.key]();
  });

  let narrow = innerWidth < 760;
  addEventListener("resize", () => {
    if (narrow !== innerWidth < 760) {
      narrow = !narrow;
      app.redraw();
    }
  });
})(window.stagelens);
