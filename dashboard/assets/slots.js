// Charts: a figure comes along as data, is drawn into the box beside it when that box comes into view, and stays the same
// plot when its figure changes. A control of a chart asks for its figure alone.
(function (app) {
  "use strict";

  const specs = (app.figures = {});
  const plots = new Map();

  // Each chart in a task of its own, so that the page reacts between them.
  const drawSoon = (name) => setTimeout(() => draw(name));
  const inView = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawSoon(entry.target.dataset.chart)),
    { rootMargin: "500px" },
  );
  const sized = new ResizeObserver((entries) =>
    entries.forEach(({ target }) => {
      const plot = plots.get(target.dataset.chart);
      const layout = plot && plot.isConnected && plot._fullLayout;
      // To be observed is reported too: a plot that fits its box is not drawn a second time.
      const fits = layout && layout.width === target.clientWidth && layout.height === target.clientHeight;
      if (layout && target.clientWidth && !fits) Plotly.Plots.resize(plot);
    }),
  );

  // Plotly takes a tenth of a second to start: it is loaded after the first paint, by the first chart in view. In a report it is there.
  const source = document.currentScript.dataset.plotly;
  let loading = null;
  function plotly() {
    const loaded = (resolve, reject) => requestAnimationFrame(() => setTimeout(() => {
      const script = document.createElement("script");
      Object.assign(script, { src: source, onload: resolve, onerror: reject });
      document.head.append(script);
    }));
    loading = loading || new Promise(loaded).catch(() => {
      loading = null;
      app.announce("Charts could not be loaded. Reload the page.");
    });
    return loading;
  }

  const slotOf = (name) => document.querySelector(`[data-chart="${CSS.escape(name)}"]`);

  function draw(name) {
    const slot = slotOf(name);
    if (!slot || !specs[name]) return;
    if (!window.Plotly) {
      plotly().then(() => window.Plotly && drawSoon(name));
      return;
    }
    inView.unobserve(slot);
    let plot = slot.firstElementChild;
    const fresh = !plot;
    if (fresh) {
      plot = document.createElement("div");
      plot.className = "own";
      slot.append(plot);
    }
    plots.set(name, plot);
    plot.page = location.pathname;
    const [theme, narrow] = [app.theme(), innerWidth < app.NARROW];
    const figure = app.expanded(specs[name], theme);
    // Another layout and another width at once leave the drawing as wide as it was: then it is drawn from nothing.
    const turned = !fresh && plot.narrow !== narrow;
    plot.narrow = narrow;
    const drawing = turned ? Plotly.newPlot : Plotly.react;
    drawing(plot, figure.data, figure.layout, app.PLOT_CONFIG).then(() => {
      Object.assign(slot.dataset, { drawn: theme, narrow });
      if (fresh || turned) listen(name, plot);
      app.keyed(name, plot);
    });
    sized.observe(slot);
    subtitle(slot, specs[name]);
  }

  // The figure of a chart. The plot of a box that was built anew moves over before the next paint.
  const loaded = new WeakSet();
  function take(figure) {
    const name = figure.dataset.spec;
    specs[name] = JSON.parse(figure.textContent);
    loaded.add(figure);
    const slot = slotOf(name);
    const plot = plots.get(name);
    if (plot && !plot.isConnected && plot.page === location.pathname) slot.append(plot);
    slot.firstElementChild ? draw(name) : inView.observe(slot);
  }

  app.drawAll = (parent) => parent.querySelectorAll("script[data-spec]").forEach(take);

  // While the document arrives: what has arrived since the last call. The last figure may be incomplete.
  app.drawNew = function () {
    document.querySelectorAll("script[data-spec]").forEach((figure) => {
      try {
        if (!loaded.has(figure)) take(figure);
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
      }
    });
  };

  function subtitle(slot, spec) {
    const head = slot.closest(".card") && slot.closest(".card").querySelector(".ch");
    const target = head && (head.querySelector(".sub .steady > span") || head.querySelector(".sub"));
    if (target && spec.subtitle) target.textContent = spec.subtitle;
  }

  // `all`: those out of view as well.
  app.redraw = function (all) {
    if (all) Object.keys(specs).forEach(draw);
    plots.forEach((plot, name) => (plot.isConnected ? draw(name) : plots.delete(name)));
  };

  // What a control asked for last counts; an answer that was overtaken is not drawn.
  const asked = {};
  app.ask = function (name) {
    const query = new URLSearchParams(location.search);
    query.set("path", location.pathname);
    const address = (asked[name] = `/figures/${name}?${query}`);
    fetch(address)
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      .then((spec) => {
        if (asked[name] !== address) return;
        specs[name] = spec;
        draw(name);
      })
      .catch(() => app.announce("This chart could not be rendered. Try again."));
  };

  function listen(name, plot) {
    if (name === "percentile") {
      plot.on("plotly_hover", (event) => app.inspect(event.points[0].pointIndex));
      plot.on("plotly_unhover", () => app.inspect(-1));
      plot.on("plotly_click", (event) => app.pin(event.points[0].pointIndex));
      return;
    }
    plot.on("plotly_click", (event) => {
      const target = event.points[0].customdata;
      if (typeof target === "string") app.follow(target);
    });
    plot.on("plotly_relayout", (change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && plot.layout.xaxis._clock) zoom(plot, [from, to]);
    });
    plot.on("plotly_selected", (event) => event && event.range && select(event.range));
    plot.on("plotly_doubleclick", () => app.back());
    link(name, plot);
  }

  // An address of the dashboard, or the name of a retained request.
  app.follow = (target) => app.go(target[0] === "/" ? target : `/traces/${encodeURIComponent(target)}${app.common()}`);

  // A box in the heat map selects requests by latency and time, in seconds.
  app.select = select;
  function select({ x, y }) {
    const ordered = (values) => [...values].sort((a, b) => a - b);
    const [low, high] = ordered(y).map((seconds) => +seconds.toPrecision(4));
    const [start, end] = ordered(x).map((milliseconds) => Math.round(milliseconds / 1000));
    if (low < high && start < end) app.go(app.address({ sel: [low, high, start, end].join(":") }));
  }

  // Dragging sets the window of the page: only in a report, which has one window, a chart zooms alone.
  function zoom(plot, range) {
    const [start, end] = range.map(Math.round).sort((a, b) => a - b);
    const { tickvals, ticktext } = app.timeTicks(plot.layout.xaxis._clock, [start, end]);
    if (app.zoomsCharts) Plotly.relayout(plot, { "xaxis.tickvals": tickvals, "xaxis.ticktext": ticktext });
    else if (end - start >= 20000) app.go(app.address({ from: String(start), to: String(end) }));
    else app.redraw();
  }

  // One line through all time charts at the time under the pointer.
  function link(name, plot) {
    const others = () => [...plots].filter(([other, otherPlot]) => other !== name && other !== "percentile"
      && otherPlot.isConnected && otherPlot.layout && otherPlot.layout.xaxis._clock);
    plot.on("plotly_hover", (event) => {
      const at = plot.layout.xaxis._clock ? event.points[0].x : null;
      others().forEach(([, otherPlot]) => cursor(otherPlot, at));
    });
    plot.on("plotly_unhover", () => others().forEach(([, otherPlot]) => cursor(otherPlot, null)));
  }

  app.cursor = cursor;
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
    // Not `left`: what is transformed moves nothing in the layout.
    line.style.transform = `translateX(${size.l + axis.d2p(at)}px)`;
    line.style.top = `${size.t}px`;
    line.style.height = `${size.h}px`;
  }
})(window.stagelens);
