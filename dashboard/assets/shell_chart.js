// The menu of a card: its numbers as a table or CSV, its charts as pictures, a link to it, code that reads it.
(function (app) {
  "use strict";

  const ITEMS = [
    ["table", "View as table"], ["png", "PNG"], ["svg", "SVG"], ["csv", "CSV"],
    ["link", "Copy link"], ["python", "Copy as Python"], ["curl", "Copy as curl"],
  ];
  const SCALE = 2;

  let menu, card, opener;
  function built() {
    menu = document.createElement("div");
    menu.className = "pop more";
    menu.popover = "auto";
    menu.id = "more";
    menu.append(...ITEMS.map(([action, text]) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: text });
      button.dataset.export = action;
      return button;
    }));
    menu.addEventListener("click", (event) => {
      const action = event.target.dataset.export;
      if (!action) return;
      menu.hidePopover();
      EXPORTS[action](card).catch((error) => app.announce(`Export failed: ${error.message}`));
    });
    menu.addEventListener("toggle", (event) => opener.setAttribute("aria-expanded", String(event.newState === "open")));
    document.body.append(menu);
  }

  app.actions.more = function (event, button) {
    if (!menu) built();
    if (opener) opener.setAttribute("aria-expanded", "false");
    [card, opener] = [button.closest(".card"), button];
    const drawn = card.querySelector("[data-chart]");
    menu.querySelectorAll("[data-export=table], [data-export=png], [data-export=svg]").forEach((item) => (item.hidden = !drawn));
    menu.showPopover();
    const [anchor, size] = [button.getBoundingClientRect(), menu.getBoundingClientRect()];
    menu.style.left = `${Math.max(8, anchor.right - size.width)}px`;
    menu.style.top = `${anchor.bottom + size.height + 8 < innerHeight ? anchor.bottom + 4 : Math.max(8, anchor.top - size.height - 4)}px`;
    menu.querySelector("button:not([hidden])").focus();
  };

  // ---- what a card holds, and what its files are called

  const charts = (container) => [...container.querySelectorAll("[data-chart]")].map((chart) => chart.dataset.chart);
  const tables = (container) => [...container.querySelectorAll("table caption")].map((caption) => caption.textContent);
  const titleOf = (container) => container.querySelector(".ch h2").textContent;

  function fileName(what, kind) {
    const [start, end] = app.window().map((moment) => new Date(moment).toISOString().slice(0, 16).replace(/[-:]/g, ""));
    const page = location.pathname.split("/").filter((part) => part && part !== "s").map(app.named).join(" ") || "fleet";
    return `${[app.query().get("svc") || "", page, what].join(" ").replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-/, "")}_${start}Z-${end}Z.${kind}`;
  }

  function saved(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // ---- numbers: the server has them

  const wanted = (container) => (charts(container).length ? charts(container).map((chart) => ({ chart })) : tables(container).map((table) => ({ table })));

  function question(which) {
    const query = app.query();
    Object.entries({ path: location.pathname, ...which }).forEach(([key, value]) => query.set(key, value));
    return `/api/v1/view?${query}`;
  }

  async function asked(which) {
    const answer = await fetch(question(which));
    if (answer.ok) return answer;
    throw new Error((await answer.json()).error);
  }

  async function csv(container) {
    for (const which of wanted(container)) {
      const answer = await asked({ ...which, format: "csv" });
      saved(await answer.blob(), fileName(which.chart || which.table, "csv"));
    }
  }

  // `like`: a row of values; numbers are aligned right.
  function row(cells, kind, like) {
    const line = document.createElement("tr");
    line.append(...cells.map((value, index) => {
      const cell = document.createElement(kind);
      cell.textContent = shown(value);
      if (kind === "th") cell.scope = "col";
      if (typeof like[index] === "number") cell.className = "r";
      return cell;
    }));
    return line;
  }

  function shown(value) {
    if (typeof value === "number") return String(Number.isInteger(value) ? value : +value.toPrecision(4));
    if (value === null) return "\u2013";
    return /^\d{4}-\d\d-\d\dT/.test(value) ? value.replace("T", " ").replace(/(:00)?(\.\d+)?Z$/, " UTC") : String(value);
  }

  function tableOf({ title, summary, columns, rows }) {
    const part = document.createElement("section");
    part.innerHTML = `<h2></h2><p class="muted"></p><div class="tw" tabindex="0" role="region"><table><thead></thead><tbody></tbody></table></div>`;
    part.querySelector("h2").textContent = title;
    part.querySelector("p").textContent = summary;
    part.querySelector(".tw").setAttribute("aria-label", title);
    part.querySelector("thead").append(row(columns.map(({ name, unit }) => (unit ? `${name} (${unit})` : name)), "th", rows[0] || []));
    part.querySelector("tbody").append(...rows.map((values) => row(values, "td", values)));
    return part;
  }

  let sheet;
  async function table(container) {
    const views = [];
    for (const chart of charts(container)) views.push(await (await asked({ chart })).json());
    if (!sheet) {
      sheet = document.createElement("dialog");
      sheet.className = "sheet";
      sheet.setAttribute("aria-label", "Chart as a table");
      document.body.append(sheet);
    }
    const foot = document.createElement("div");
    foot.className = "acts";
    foot.innerHTML = `<button type="button" class="btn">CSV</button><button type="button" class="btn pri" data-do="close">Close</button>`;
    foot.firstElementChild.addEventListener("click", () => csv(container));
    sheet.replaceChildren(...views.map(tableOf), foot);
    sheet.showModal();
  }

  // ---- pictures: Plotly writes SVG, the browser makes the PNG of it; Plotly's own way needs what the policy forbids

  const heading = (container) => [titleOf(container), (container.querySelector(".ch .sub") || {}).textContent || ""];

  const HEAD = 44;
  async function drawn(chart, [title, sub]) {
    const [figure, box] = [app.figures[chart], document.querySelector(`[data-chart="${CSS.escape(chart)}"]`)];
    const [width, height] = [box.clientWidth, box.clientHeight + HEAD];
    const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    const about = [app.here(), title].filter(Boolean).map(safe).join(" \u00b7 ");
    const zone = figure.layout.xaxis._clock ? ` \u00b7 times in ${app.zone()}` : "";
    const heading = { text: `<b>${about}</b>  <span style="color:{$muted}">${safe(sub + zone)}</span>`, x: 0.01, y: 1 - 20 / height, font: { size: 13, color: "$ink" } };
    const whole = { ...figure, layout: { ...figure.layout, paper_bgcolor: "$surface", title: heading } };
    const { data, layout } = app.expanded(whole, app.theme());
    const margin = { ...layout.margin, t: ((layout.margin || {}).t || 10) + HEAD };
    const address = await Plotly.toImage({ data, layout: { ...layout, margin } }, { format: "svg", width, height });
    return { text: decodeURIComponent(address.slice(address.indexOf(",") + 1)), width, height };
  }

  async function svgs(container) {
    const pictures = [];
    for (const chart of charts(container)) {
      if (app.figures[chart]) pictures.push([chart, await drawn(chart, heading(container))]);
    }
    return pictures;
  }

  async function svg(container) {
    for (const [chart, { text }] of await svgs(container)) saved(new Blob([text], { type: "image/svg+xml" }), fileName(chart, "svg"));
  }

  async function png(container) {
    for (const [chart, { text, width, height }] of await svgs(container)) {
      const picture = new Image();
      picture.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
      await picture.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: SCALE * width, height: SCALE * height });
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      saved(await new Promise((done) => canvas.toBlob(done)), fileName(chart, "png"));
    }
  }

  async function link(container) {
    const [chart] = charts(container);
    app.copied(location.origin + location.pathname + location.search + (chart ? `#${chart}` : ""), `Link to "${titleOf(container)}" copied`);
  }

  // A string of JSON is one of Python, too.
  const quoted = JSON.stringify;

  async function python(container) {
    const reads = wanted(container).flatMap((which) => {
      const [[kind, name]] = Object.entries(which);
      return [`frame = client.view(${quoted(location.pathname + location.search)}, ${kind}=${quoted(name)})`, "print(frame)"];
    });
    const lines = ["from stagelens.client import connect", "", `client = connect(${quoted(location.origin)})`, ...reads, ""];
    app.copied(lines.join("\n"), `Python code for "${titleOf(container)}" copied`);
  }

  async function curl(container) {
    const token = "token" in document.documentElement.dataset ? `-H "Authorization: Bearer $STAGELENS_DASHBOARD_TOKEN" ` : "";
    const lines = wanted(container).map((which) => `curl -s ${token}'${location.origin}${question(which)}'\n`);
    app.copied(lines.join(""), `curl command for "${titleOf(container)}" copied`);
  }

  const EXPORTS = { table, csv, svg, png, link, python, curl };
})(window.stagelens);
