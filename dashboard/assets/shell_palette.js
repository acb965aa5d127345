// The palette: services, versions, pages, traces by id, times and settings by a few letters of their names.
(function (app) {
  "use strict";

  const MOST = 12;
  const FRESH = 60000;
  const TRACE = /^[0-9a-f]{8,32}(-[0-9a-f]{16})?$/;

  // ---- what there is

  let names = { services: [], at: 0 };
  function asked() {
    if (Date.now() - names.at < FRESH) return Promise.resolve();
    return fetch("/api/v1/names").then((answer) => (answer.ok ? answer.json() : Promise.reject(answer)))
      .then(({ services }) => (names = { services, at: Date.now() }))
      .catch(() => (names.missing = true));
  }

  function ofService(service) {
    const found = names.services.find((each) => each.name === service);
    const tabs = [...document.querySelectorAll(".tabs a")].map((tab) => [`${service}: ${tab.textContent}`, "Page", tab.getAttribute("href")]);
    const versions = (found ? found.versions : []).filter(Boolean);
    return [
      ...tabs,
      [`Compare ${service} with the previous version or window`, "Compare", app.to("/compare", { svc: service })],
      ...versions.map((version) => [`${service} ${version}`, "Version", app.to(found.path, { v: version })]),
      ...versions.map((version) => [`Compare ${version} of ${service} with the one before`, "Compare", app.to("/compare", { svc: service, b: version })]),
    ];
  }

  // A button of the frame does the same as its line in the palette.
  const buttons = (selector, kind, text) => [...document.querySelectorAll(selector)].map((each) => [text(each), kind, () => each.click()]);
  const SETTINGS = [
    ["Light or dark theme", "theme"], ["Patterns on stages, for colour blindness", "patterns"], ["Compact or wide rows", "density"],
    ["Copy the link to this view", "copy"], ["Save this view as one file", "save"], ["Refresh on or off", "refresh"], ["Keys and help", "help"],
  ];

  function everything() {
    const service = app.here();
    const pages = JSON.parse(document.getElementById("jump").dataset.pages);
    return [
      ...pages.map(([text, path]) => [text, "Page", app.to(path)]),
      ...names.services.map(({ name, path }) => [name, "Service", app.to(path)]),
      ...(service ? ofService(service) : []),
      ...buttons("[data-window]", "Time", (each) => each.textContent),
      ...buttons(".menu.time [data-key]", "Time", (each) => `${each.parentElement.getAttribute("aria-label")}: ${each.textContent}`),
      ...buttons(".menu.env [data-key]", "Environment", (each) => `Environment ${each.textContent}`),
      ...SETTINGS.map(([text, action]) => [text, "Setting", () => app.actions[action]({})]),
    ];
  }

  // ---- which of it is meant

  // The whole, the start of a word, anywhere, letters in their order: less and less; 0 for a word that is not there.
  function likeness(text, word) {
    const place = text.indexOf(word);
    if (text === word) return 5;
    if (place === 0) return 4;
    if (place > 0) return /[a-z0-9]/.test(text[place - 1]) ? 2 : 3;
    let from = 0;
    return [...word].every((letter) => (from = text.indexOf(letter, from) + 1) > 0) ? 1 : 0;
  }

  function meant(typed) {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const found = everything().map((item) => {
      const each = words.map((word) => likeness(item[0].toLowerCase().replace(/\u202f/g, " "), word));
      return { item, rank: each.every(Boolean) ? each.reduce((sum, one) => sum + one, 0) : -1 };
    });
    const kept = found.filter(({ rank }) => rank >= 0).sort((a, b) => b.rank - a.rank || (words.length ? a.item[0].length - b.item[0].length : 0));
    const items = kept.slice(0, MOST).map(({ item }) => item);
    const id = typed.trim().toLowerCase();
    return TRACE.test(id) ? [[`Trace ${id}`, "Trace", app.to(`/traces/${id}`)], ...items.slice(1 - MOST)] : items;
  }

  // ---- the box

  // The server writes no field: one that is placed anew while somebody types loses letters.
  let box, field, list, found = [], chosen = 0;
  function built() {
    box = document.getElementById("jump");
    box.innerHTML = `<input type="text" role="combobox" aria-expanded="true" aria-controls="found" aria-autocomplete="list" autocomplete="off"
      spellcheck="false" placeholder="Service, version, page, time or trace id" aria-label="Jump to"><ul id="found" role="listbox" aria-label="Results"></ul><p class="hint"></p>`;
    [field, list] = [box.querySelector("input"), box.querySelector("ul")];
    field.addEventListener("input", listed);
    field.addEventListener("keydown", moved);
    list.addEventListener("click", (event) => {
      const option = event.target.closest("li");
      if (option) taken(+option.dataset.place);
    });
  }

  function option([text, kind], place) {
    const line = document.createElement("li");
    line.id = `found-${place}`;
    line.dataset.place = place;
    line.setAttribute("role", "option");
    const [name, what] = [document.createElement("span"), document.createElement("small")];
    name.textContent = text;
    what.textContent = kind;
    line.append(name, what);
    return line;
  }

  function listed() {
    found = meant(field.value);
    list.replaceChildren(...found.map(option));
    box.querySelector("p").textContent = found.length ? (names.missing ? "The list of services could not be loaded." : "") : "No match.";
    lit(0);
  }

  function lit(place) {
    chosen = found.length ? (place + found.length) % found.length : 0;
    [...list.children].forEach((line, index) => line.setAttribute("aria-selected", String(index === chosen)));
    field.setAttribute("aria-activedescendant", found.length ? `found-${chosen}` : "");
    if (found.length) list.children[chosen].scrollIntoView({ block: "nearest" });
  }

  function moved(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (steps[event.key]) lit(chosen + steps[event.key]);
    // Who types faster than the server answers still gets the service.
    else if (event.key === "Enter") waiting.then(() => taken(chosen));
    else return;
    event.preventDefault();
  }

  function taken(place) {
    const item = found[place];
    if (!item || !box.open) return;
    box.close();
    if (typeof item[2] === "string") app.go(item[2]);
    else item[2]();
  }

  let waiting = Promise.resolve();
  app.actions.jump = function () {
    if (!box || !box.contains(field)) built();
    field.value = "";
    app.closeMenus();
    if (!box.open) box.showModal();
    field.focus();
    listed();
    waiting = asked().then(() => box.open && listed());
  };
})(window.stagelens);
