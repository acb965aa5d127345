// Charts by keyboard: arrows move a cursor, which is announced; Enter does what a click does there, Escape leaves.
(function (app) {
  "use strict";

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], PageUp: [10, 10], PageDown: [-10, -10], Home: [-1e9, 0], End: [1e9, 0] };
  const within = (index, length) => Math.max(0, Math.min(length - 1, index));
  const plain = (text) => String(text).replace(/<br>/g, ", ").replace(/<[^>]*>/g, "");

  // The percentile chart, beside the table of its stages.
  const percentile = {
    fits: (name) => name === "percentile" && document.querySelector("[data-inspector]"),
    move(plot, at, [across, up]) {
      const x = plot._fullData[0].x;
      const step = Math.abs(across) > 1 ? across : across || up;
      at.index = within((at.index === undefined ? app.pinned() : at.index) + step, x.length);
      app.inspect(at.index);
      app.cursor(plot, x[at.index]);
      return app.percentileWords(at.index);
    },
    enter: (plot, at) => at.index !== undefined && app.pin(at.index),
    leave: (plot) => {
      app.inspect(-1);
      app.cursor(plot, null);
    },
  };

  // The time at `x`, by the reader's clock.
  function clock(plot, x) {
    const [, offset] = plot.layout.xaxis._clock.findLast(([start], index) => !index || start <= x);
    return new Date(x + offset).toISOString().slice(11, 19);
  }

  const cellsOf = (plot) => plot._fullData.find((trace) => trace.type === "heatmap");
  // The heat map: a cell, with Shift a box of cells, which Enter selects.
  const heat = {
    fits: (name) => name === "heat",
    move(plot, at, [across, up], event) {
      const { z, text, x } = cellsOf(plot);
      const [rows, columns] = [z.length, z[0].length];
      if (at.column === undefined) {
        at.column = columns - 1;
        at.row = within(z.findIndex((row) => row[at.column] !== null && row[at.column] !== undefined), rows);
      } else {
        at.anchor = event.shiftKey ? at.anchor || [at.column, at.row] : null;
        at.column = within(at.column + across, columns);
        at.row = within(at.row + (Math.abs(up) > 1 ? 0 : up), rows);
      }
      framed(plot, box(plot, at));
      return `${clock(plot, x[at.column])} \u00b7 ${plain(text[at.row][at.column]) || "no requests"}`;
    },
    enter(plot, at) {
      const range = at.column !== undefined && box(plot, at);
      if (range) app.select(range);
    },
    leave(plot) {
      framed(plot, null);
      if (app.query().get("sel")) app.go(app.address({ sel: "" }));
    },
  };

  function box(plot, { column, row, anchor }) {
    const { x, y } = cellsOf(plot);
    const [[left, right], [low, high]] = [[column, (anchor || [column])[0]], [row, (anchor || [0, row])[1]]].map((pair) => pair.sort((a, b) => a - b));
    return { x: [x[left], x[right + 1]], y: [y[low], y[high + 1]] };
  }

  function framed(plot, range) {
    let frame = plot.querySelector(".framed");
    if (!frame) plot.append((frame = Object.assign(document.createElement("div"), { className: "framed" })));
    frame.hidden = !range;
    if (!range) return;
    const { xaxis, yaxis, _size } = plot._fullLayout;
    const [x, y] = [range.x.map((value) => xaxis.d2p(value)), range.y.map((value) => yaxis.d2p(value))];
    frame.style.transform = `translate(${_size.l + x[0]}px, ${_size.t + y[1]}px)`;
    Object.assign(frame.style, { width: `${x[1] - x[0]}px`, height: `${y[0] - y[1]}px` });
  }

  // Charts with points that link to pages: from one point to the next.
  const pointsOf = (plot) => plot._fullData.flatMap((trace) => [...(trace.customdata || [])].map((target, index) => ({ trace, target, index })))
    .filter(({ target }) => typeof target === "string" && target)
    .sort((a, b) => (a.trace.x[a.index] < b.trace.x[b.index] ? -1 : a.trace.x[a.index] > b.trace.x[b.index] ? 1 : 0));
  const points = {
    fits: (name, plot) => pointsOf(plot).length > 0,
    move(plot, at, [across, up]) {
      const all = pointsOf(plot);
      at.index = at.index === undefined ? all.length - 1 : within(at.index + (across || up), all.length);
      const { trace, index } = all[at.index];
      app.cursor(plot, trace.x[index]);
      const text = Array.isArray(trace.text) ? trace.text[index] : trace.hovertext && trace.hovertext[index];
      const when = plot.layout.xaxis._clock && clock(plot, trace.x[index]);
      return [when, trace.name, plain(text || ""), `${at.index + 1} of ${all.length}`].filter(Boolean).join(", ");
    },
    enter: (plot, at) => at.index !== undefined && app.follow(pointsOf(plot)[at.index].target),
    leave: (plot) => app.cursor(plot, null),
  };

  const states = new WeakMap();
  const modeOf = (name, plot) => [percentile, heat, points].find((candidate) => candidate.fits(name, plot));
  // Called with each drawing: the reader can go to the chart with the Tab key. The table that a chart is read with may arrive later.
  app.keyed = function (name, plot) {
    const slot = plot.parentElement;
    if (states.has(slot) || !(modeOf(name, plot) || "loading" in document.documentElement.dataset)) return;
    states.set(slot, { name, at: {} });
    slot.tabIndex = 0;
    slot.setAttribute("role", "application");
    slot.setAttribute("aria-roledescription", "chart");
    slot.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight Enter Escape");
    slot.addEventListener("keydown", (event) => pressed(slot, event));
    slot.addEventListener("blur", () => left(slot));
  };

  function left(slot) {
    const [state, plot] = [states.get(slot), slot.firstElementChild];
    const mode = modeOf(state.name, plot);
    if (mode === heat || !mode || !Object.keys(state.at).length) return;
    state.at = {};
    mode.leave(plot);
  }

  function pressed(slot, event) {
    const [state, plot] = [states.get(slot), slot.firstElementChild];
    const mode = plot._fullData && modeOf(state.name, plot);
    if (event.metaKey || event.ctrlKey || event.altKey || !mode) return;
    if (ARROWS[event.key]) app.announce(mode.move(plot, state.at, ARROWS[event.key], event));
    else if (event.key === "Enter" || event.key === " ") mode.enter(plot, state.at);
    else if (event.key === "Escape") {
      state.at = {};
      mode.leave(plot);
    }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
})(window.stagelens);
