// Charts: a figure waits in a store, is drawn into the box beside it when that box comes into view, and stays the same
// plot when its figure changes. Also what a hover on a chart says elsewhere on the page.
(function (app) {
  "use strict";

  const specs = {};
  const plots = new Map();

  const inView = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target.dataset.chart)),
    { rootMargin: "500px" },
  );
  const sized = new ResizeObserver((entries) =>
    entries.forEach(({ target }) => {
      const plot = plots.get(target.dataset.chart);
      if (plot && plot.isConnected && target.clientWidth) Plotly.Plots.resize(plot);
    }),
  );

  const slotOf = (name) => document.querySelector(`[data-chart="${CSS.escape(name)}"]`);

  function draw(name) {
    const slot = slotOf(name);
    if (!slot || !specs[name]) return;
    inView.unobserve(slot);
    // React owns the box and Plotly what is in it.
    let plot = slot.firstElementChild;
    const fresh = !plot;
    if (fresh) {
      plot = document.createElement("div");
      plot.className = "own";
      slot.append(plot);
    }
    plots.set(name, plot);
    plot.page = location.pathname;
    const figure = app.expanded(specs[name], app.theme());
    Plotly.react(plot, figure.data, figure.layout, app.PLOT_CONFIG).then(() => {
      slot.dataset.drawn = app.theme();
      if (fresh) listen(name, plot);
    });
    sized.observe(slot);
    subtitle(slot, specs[name]);
  }

  // A refresh builds the page's boxes anew. Their plots move over before the next paint, so that nothing flickers.
  new MutationObserver(() => {
    document.querySelectorAll("[data-chart]").forEach((slot) => {
      const plot = plots.get(slot.dataset.chart);
      if (plot && !plot.isConnected && !slot.firstElementChild && plot.page === location.pathname) slot.append(plot);
    });
  }).observe(document.documentElement, { childList: true, subtree: true });

  function subtitle(slot, spec) {
    const place = slot.closest(".card") && slot.closest(".card").querySelector(".ch .sub");
    if (place && spec.subtitle) place.textContent = spec.subtitle;
  }

  app.redraw = function () {
    plots.forEach((plot, name) => (plot.isConnected ? draw(name) : plots.delete(name)));
  };

  function listen(name, plot) {
    if (name === "percentile") {
      plot.on("plotly_hover", (event) => app.inspect(event.points[0].pointIndex));
      plot.on("plotly_unhover", () => app.inspect(-1));
      plot.on("plotly_click", (event) => app.pin(event.points[0].pointIndex));
      return;
    }
    plot.on("plotly_click", (event) => {
      const trace = event.points[0].customdata;
      if (typeof trace === "string") app.go(`/traces/${encodeURIComponent(trace)}${common()}`);
    });
    plot.on("plotly_relayout", (change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && plot.layout.xaxis.type === "date") zoom(from, to);
    });
    plot.on("plotly_doubleclick", () => history.back());
    link(name, plot);
  }

  const common = () => {
    const kept = new URLSearchParams(location.search);
    [...kept.keys()].filter((key) => !["env", "from", "to", "tz", "refresh"].includes(key)).forEach((key) => kept.delete(key));
    const text = kept.toString();
    return text ? "?" + text : "";
  };

  // Times on a chart are the reader's wall clock. Dragging sets the window of the page: there is no zoom of one chart.
  function zoom(from, to) {
    const utc = new URLSearchParams(location.search).get("tz") === "utc";
    const moment = (text) => Date.parse(String(text).replace(" ", "T").slice(0, 23) + (utc ? "Z" : ""));
    const [start, end] = [moment(from), moment(to)].sort((a, b) => a - b);
    if (end - start >= 20000) app.go(app.address({ from: String(Math.round(start)), to: String(Math.round(end)) }));
    else app.redraw();
  }

  // One line through all time charts at the time under the pointer.
  function link(name, plot) {
    const others = () => [...plots].filter(([other, each]) => other !== name && other !== "percentile"
      && each.isConnected && each.layout && each.layout.xaxis.type === "date");
    plot.on("plotly_hover", (event) => {
      const at = event.points[0].xaxis.d2p ? event.points[0].x : null;
      others().forEach(([, each]) => cursor(each, at));
    });
    plot.on("plotly_unhover", () => others().forEach(([, each]) => cursor(each, null)));
  }

  function cursor(plot, at) {
    let line = plot.querySelector(".cursor");
    if (!line) {
      line = document.createElement("div");
      line.className = "cursor";
      plot.append(line);
    }
    const axis = plot._fullLayout && plot._fullLayout.xaxis;
    const size = plot._fullLayout && plot._fullLayout._size;
    line.hidden = at === null || !axis;
    if (line.hidden) return;
    line.style.left = `${size.l + axis.d2p(at)}px`;
    line.style.top = `${size.t}px`;
    line.style.height = `${size.h}px`;
  }

  // ---- the table beside the percentile chart: p50 against the percentile under the pointer

  function inspector() {
    const box = document.querySelector("[data-inspector]");
    return box && { box, values: JSON.parse(box.dataset.inspector) };
  }

  app.inspect = function (index) {
    const found = inspector();
    if (!found) return;
    const { box, values } = found;
    const shown = index < 0 ? pinned(values) : index;
    const name = values.percentiles[shown];
    let [base, total] = [0, 0];
    box.querySelectorAll("tr[data-stage]").forEach((row) => {
      const [before, now] = [values.base[row.dataset.stage], values.stages[row.dataset.stage][shown]];
      base += before;
      total += now;
      row.querySelector("[data-now]").textContent = app.duration(now);
      const bar = row.querySelector(".dv i");
      bar.style.width = `${Math.max(0.6, Math.min(100, (Math.abs(now - before) / values.widest) * 100))}%`;
      bar.classList.toggle("less", now < before);
      row.querySelector(".dv").title = (now > before ? "+" : "") + app.duration(now - before);
    });
    document.querySelectorAll("[data-percentile]").forEach((each) => (each.textContent = name));
    box.querySelector("[data-total]").textContent = app.duration(total);
    box.querySelector("[data-added]").textContent = (total > base ? "+" : "") + app.duration(total - base);
    document.querySelector("[data-band]").textContent = values.bands[shown];
  };

  function pinned(values) {
    const wanted = "p" + (new URLSearchParams(location.search).get("p") || "");
    const index = values.percentiles.indexOf(wanted);
    return index < 0 ? values.default : index;
  }

  app.pin = function (index) {
    const found = inspector();
    if (!found) return;
    const name = found.values.percentiles[index].slice(1);
    history.replaceState(history.state, "", app.address({ p: name === "99" ? "" : name }));
    app.inspect(index);
  };

  // ---- what Dash calls

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    stagelens: {
      slot(spec, id) {
        specs[id.i] = spec;
        const slot = slotOf(id.i);
        if (spec && slot) slot.firstElementChild ? draw(id.i) : inView.observe(slot);
        return "plot ready";
      },
      // The beat of the refresh: silent while nobody looks, while a pointer rests on a chart, while an answer is due.
      beat(count, tick, seen) {
        const quiet = document.visibilityState !== "visible" || !navigator.onLine || document.querySelector(".plot:hover, .menu[open], dialog[open]");
        const query = new URLSearchParams(location.search);
        const frozen = query.get("refresh") === "off" || (query.has("to") && query.get("to") !== "now");
        const due = tick && (!seen || seen.beat !== tick.beat) && Date.now() - tick.at < 60000;
        if (!count || quiet || frozen || due) return window.dash_clientside.no_update;
        return { beat: count, at: Date.now(), search: location.search };
      },
      arrived() {
        const page = document.querySelector("#root [data-title]");
        if (page) document.title = page.dataset.title;
        app.settle();
        return window.dash_clientside.no_update;
      },
    },
  });
})(window.stagelens);
