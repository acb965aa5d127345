// The palette: services with their tabs, stages and versions, objectives, incidents, pages, traces by id, times and settings by a
// few letters of their names, in any order and with a typing error.
(function (app) {
  "use strict";

  const MOST = 12;
  const FRESH = 60000;
  const TRACE = /^[0-9a-f]{8,32}(-[0-9a-f]{16})?$/;

  // ---- what there is

  // Asked for when the palette opens, within the rights of the reader. What fails leaves its kind out.
  let names = { services: [], fleet: [], slos: [], incidents: [], at: 0 };
  const get = (path) => fetch(`/api/v1/${path}`).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer)));
  const records = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map(({ name }, index) => [name, row[index]])));
  // As `path_segment` in addresses.py.
  const segment = (name) => encodeURIComponent(name.replace(/[\x00-\x1f\x7f/\\%?#;~]|^\.(?=\.?$)/g,
    (letter) => `~${letter.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`));
  function asked() {
    if (Date.now() - names.at < FRESH) return Promise.resolve();
    const more = [
      ["fleet", get("query/fleet").then(records)], ["slos", get("query/slo").then(({ objectives }) => objectives.map(({ slo }) => slo))],
      ["incidents", get("query/incidents").then(records)],
    ].map(([key, answer]) => answer.then((rows) => (names[key] = rows), () => 0));
    everyAnswer = Promise.all(more).then(() => box.open && listed(true));
    const services = get("names").then(({ services }) => Object.assign(names, { services, at: Date.now(), missing: false }), () => (names.missing = true));
    return services;
  }

  const TABS = [["Compare"], ["SLO"], ["Traces", "traces"], ["Tokens", "tokens"], ["Capacity & cost", "capacity"], ["Replicas", "replicas"], ["Advice", "advice"]];
  const stages = () => Object.entries(JSON.parse(document.getElementById("jump").dataset.stages));

  // The tabs, stages and versions of a service.
  function ofService({ name, path, versions }) {
    const about = names.fleet.find((record) => record.service === name) || {};
    const goes = {
      Compare: () => app.to("/compare", { svc: name }),
      SLO: () => about.slo && app.to(`/slo/${segment(about.slo)}`),
      Tokens: (tab) => (about.kind === "llm" || (app.here() === name && document.querySelector(".tabs a[href*='/tokens']"))) && app.to(`${path}/${tab}`),
    };
    const tabs = TABS.map(([text, tab]) => [`${name}: ${text}`, "Tab", goes[text] ? goes[text](tab) : app.to(`${path}/${tab}`)]);
    const named = versions.filter(Boolean);
    const isHere = app.here() === name;
    return [
      ...tabs.filter(([, , address]) => address),
      ...stages().map(([key, text]) => [`${name}: requests that are mostly ${text}`, "Stage", app.to(`${path}/traces`, { dom: key })]),
      ...named.map((version) => [`${name} ${version}`, "Version", app.to(path, { v: version })]),
      ...named.map((version) => [`Compare ${version} of ${name} with the one before`, "Compare", app.to("/compare", { svc: name, b: version })]),
    ].map((item) => [...item, isHere]);
  }

  // A button of the frame does the same as its line in the palette.
  const buttons = (selector, kind, text) => [...document.querySelectorAll(selector)].map((button) => [text(button), kind, () => button.click()]);
  const SETTINGS = [
    ["Light or dark theme", "theme"], ["Patterns on stages, for colour blindness", "patterns"], ["Compact or wide rows", "density"],
    ["Copy the link to this view", "copy"], ["Save this view as one file", "save"], ["Refresh on or off", "refresh"], ["Keys and help", "help"],
  ];

  // `typed`: with words, also what is in the services.
  function everything(typed) {
    const pages = JSON.parse(document.getElementById("jump").dataset.pages);
    const [service, inside] = [app.here(), typed ? names.services : []];
    const current = names.services.filter(({ name }) => name === service);
    return [
      ...pages.map(([text, path]) => [text, "Page", app.to(path)]),
      ...names.services.map(({ name, path }) => [name, "Service", app.to(path)]),
      ...(service ? [[`Compare ${service} with the previous version or window`, "Compare", app.to("/compare", { svc: service })]] : []),
      ...(typed ? inside : current).flatMap(ofService),
      ...names.slos.map(({ name, service: of }) => [of && !name.includes(of) ? `${name} of ${of}` : name, "SLO", app.to(`/slo/${segment(name)}`)]),
      ...names.incidents.map(({ id, headline, state }) => [headline, state === "open" ? "Open incident" : "Incident", app.to(`/incidents/${encodeURIComponent(id)}`)]),
      ...stages().map(([key, text]) => [`Requests that are mostly ${text}`, "Stage", app.to("/traces", { dom: key })]),
      ...buttons("[data-window]", "Time", (button) => button.textContent),
      ...buttons(".menu.time [data-key]", "Time", (button) => `${button.parentElement.getAttribute("aria-label")}: ${button.textContent}`),
      ...buttons(".menu.env [data-key]", "Environment", (button) => `Environment ${button.textContent}`),
      ...SETTINGS.map(([text, action]) => [text, "Setting", () => app.actions[action]({})]),
    ];
  }

  // ---- which of it is meant

  // Whether two words differ by at most `most` letters: one more, one less, another, or two swapped.
  function differ(a, b, most) {
    if (Math.abs(a.length - b.length) > most) return false;
    let [before, row] = [[], [...b, ""].map((_, index) => index)];
    for (let i = 1; i <= a.length; i += 1) {
      const next = [i];
      for (let j = 1; j <= b.length; j += 1) {
        const same = a[i - 1] === b[j - 1];
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + !same);
        if (a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
    }
    return row[b.length] <= most;
  }

  // The whole, the start of a word, anywhere, a word with a typing error, letters in their order: less and less; 0 for none.
  function likeness(text, word) {
    const index = text.indexOf(word);
    if (text === word) return 5;
    if (index === 0) return 4;
    if (index > 0) return /[a-z0-9]/.test(text[index - 1]) ? 2 : 3;
    const errors = word.length > 7 ? 2 : word.length > 3 ? 1 : 0;
    if (errors && [...text.split(/[^a-z0-9.]+/), ...text.split(/:? /)].some((part) => differ(word, part, errors) || differ(word, part.slice(0, word.length), errors))) return 1.5;
    let from = 0;
    return [...word].every((letter) => (from = text.indexOf(letter, from) + 1) > 0) ? 0.5 / (1 + from / 1000) : 0;
  }

  // Among equal names: the more likely first.
  const KINDS = ["Service", "Page", "Tab", "SLO", "Open incident", "Setting", "Version", "Incident", "Compare", "Time", "Environment", "Stage"];

  function meant(typed) {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const ranked = everything(words.length).map((item) => {
      const [name, kind] = [item[0].toLowerCase().replace(/\u202f/g, " "), item[1].toLowerCase()];
      const ranks = words.map((word) => Math.max(likeness(name, word), kind.includes(word) ? 1.2 : 0));
      return { item, rank: ranks.every(Boolean) ? ranks.reduce((sum, one) => sum + one, item[3] ? 0.5 : 0) : -1 };
    });
    const order = (a, b) => b.rank - a.rank || (words.length ? KINDS.indexOf(a.item[1]) - KINDS.indexOf(b.item[1]) || a.item[0].length - b.item[0].length : 0);
    const items = ranked.filter(({ rank }) => rank >= 0).sort(order).slice(0, MOST).map(({ item }) => item);
    const id = typed.trim().toLowerCase();
    return TRACE.test(id) ? [[`Trace ${id}`, "Trace", app.to(`/traces/${id}`)], ...items.slice(1 - MOST)] : items;
  }

  // ---- the box

  // The server writes no field: one that is placed anew while the reader types loses letters.
  let box, field, list, results = [], chosen = 0;
  function built() {
    box = document.getElementById("jump");
    box.innerHTML = `<input type="text" role="combobox" aria-expanded="true" aria-controls="found" aria-autocomplete="list" autocomplete="off"
      spellcheck="false" placeholder="Service, tab, SLO, stage, incident, page or trace id" aria-label="Jump to"><ul id="found" role="listbox" aria-label="Results"></ul><p class="hint"></p>`;
    [field, list] = [box.querySelector("input"), box.querySelector("ul")];
    field.addEventListener("input", listed);
    field.addEventListener("keydown", moved);
    list.addEventListener("click", (event) => {
      const option = event.target.closest("li");
      if (option) choose(+option.dataset.index);
    });
  }

  function option([text, kind], index) {
    const line = document.createElement("li");
    line.id = `found-${index}`;
    line.dataset.index = index;
    line.setAttribute("role", "option");
    const [name, what] = [document.createElement("span"), document.createElement("small")];
    name.textContent = text;
    what.textContent = kind;
    line.append(name, what);
    return line;
  }

  // `same`: what was chosen stays so if it is still there.
  function listed(same) {
    const before = same === true && results[chosen];
    results = meant(field.value);
    list.replaceChildren(...results.map(option));
    box.querySelector("p").textContent = results.length ? (names.missing ? "The list of services could not be loaded." : "") : "No match.";
    lit(Math.max(0, before ? results.findIndex(([text, kind]) => text === before[0] && kind === before[1]) : 0));
  }

  function lit(position) {
    chosen = results.length ? (position + results.length) % results.length : 0;
    [...list.children].forEach((line, index) => line.setAttribute("aria-selected", String(index === chosen)));
    field.setAttribute("aria-activedescendant", results.length ? `found-${chosen}` : "");
    if (results.length) list.children[chosen].scrollIntoView({ block: "nearest" });
  }

  function moved(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (steps[event.key]) lit(chosen + steps[event.key]);
    // Who types faster than the server answers still gets the service.
    else if (event.key === "Enter") (results.length ? waiting : Promise.all([waiting, everyAnswer])).then(() => choose(chosen));
    else return;
    event.preventDefault();
  }

  function choose(index) {
    const item = results[index];
    if (!item || !box.open) return;
    box.close();
    if (typeof item[2] === "string") app.go(item[2]);
    else item[2]();
  }

  let [waiting, everyAnswer] = [Promise.resolve(), Promise.resolve()];
  app.actions.jump = function () {
    if (!box || !box.contains(field)) built();
    field.value = "";
    app.closeMenus();
    if (!box.open) box.showModal();
    field.focus();
    listed();
    waiting = asked().then(() => box.open && listed(true));
  };
})(window.stagelens);
