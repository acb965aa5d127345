// Token figures to Plotly figures: colours of the active theme, the layout every chart shares, narrow screens.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  const NARROW = (app.NARROW = 760);
  const THIN = "\u202f";
  const root = document.documentElement;
  const palettes = {};

  app.theme = function () {
    return root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  };

  // tokens.css holds every colour as light-dark(a, b), and nothing else does.
  function palette(theme) {
    return (palettes[theme] = palettes[theme] || new Proxy({}, {
      get(cache, token) {
        if (!(token in cache)) {
          const name = "--" + String(token).replace("st.", "st-");
          const pair = /light-dark\(\s*(#\w+)\s*,\s*(#\w+)\s*\)/.exec(getComputedStyle(root).getPropertyValue(name));
          cache[token] = pair ? pair[theme === "dark" ? 2 : 1] : undefined;
        }
        return cache[token];
      },
    }));
  }

  function parts(hex) {
    const value = parseInt(hex.slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }

  function mixed(hex, ground, share) {
    const [from, to] = [parts(hex), parts(ground)];
    return `rgb(${from.map((part, i) => Math.round(part * share + to[i] * (1 - share))).join(",")})`;
  }

  function resolved(text, colours) {
    if (text[0] !== "$") {
      return text.includes("{$") ? text.replace(/\{\$([\w.]+)\}/g, (_, token) => colours[token] || "inherit") : text;
    }
    const [token, strength] = text.slice(1).split("@");
    const hex = colours[token];
    if (!hex || strength === undefined) return hex || text;
    return strength[0] === "~"
      ? mixed(hex, colours.surface, +strength.slice(1))
      : `rgba(${parts(hex).join(",")},${strength})`;
  }

  function walk(value, colours) {
    if (typeof value === "string") return resolved(value, colours);
    if (Array.isArray(value)) return value.map((element) => walk(element, colours));
    if (!value || typeof value !== "object" || value.bdata) return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, walk(part, colours)]));
  }

  function merged(below, above) {
    const result = Object.assign({}, below);
    for (const [key, value] of Object.entries(above || {})) {
      const plain = value && typeof value === "object" && !Array.isArray(value);
      result[key] = plain && result[key] && typeof result[key] === "object" ? merged(result[key], value) : value;
    }
    return result;
  }

  // ---- patterns by family, for those who do not see the hues; what a user's own stage is always has one

  const SHAPES = { wait: "/", cpu: ".", copy: "x", own: "\\" };
  const PATTERNS = "stagelens-patterns";
  try {
    if (localStorage.getItem(PATTERNS) === "on") root.dataset.patterns = "on";
  } catch (_) {
    // Storage may be forbidden; patterns are off then.
  }

  app.patterned = () => root.dataset.patterns === "on";

  // Turns the patterns on or off, here and on the next visit.
  app.patterns = function (on) {
    root.toggleAttribute("data-patterns", on);
    if (on) root.dataset.patterns = "on";
    try {
      localStorage.setItem(PATTERNS, on ? "on" : "off");
    } catch (_) {
      // The choice then lasts as long as the page.
    }
    app.redraw();
  };

  function withPattern(trace) {
    const family = trace.meta && trace.meta.family;
    const shape = (family === "own" || app.patterned()) && SHAPES[family];
    const fine = { shape, size: family === "cpu" ? 5 : 7, solidity: family === "cpu" ? 0.28 : 0.2 };
    return shape ? { ...trace, fillpattern: { ...fine, fgcolor: "$ink@.5", bgcolor: trace.fillcolor } } : trace;
  }

  // ---- one stage highlighted: the others step back. A stage is known by the name of its trace.

  const PALE = "@~0.14";
  app.lit = "";

  function stepped(trace) {
    if (!app.lit) return trace;
    if (trace._cells && trace._cells.byStage) {
      const index = trace._cells.labels.indexOf(app.lit);
      const scale = trace.colorscale.map(([at, colour], i) => [at, Math.floor(i / 3) === index ? colour : colour.split("@")[0] + PALE]);
      return { ...trace, colorscale: scale };
    }
    if (!trace.stackgroup || trace.name === app.lit) return trace;
    return { ...trace, fillcolor: trace.fillcolor.split("@")[0] + PALE };
  }

  // ---- every request

  function unpacked(text, Type) {
    return new Type(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  }

  // Counts and dominating stages to heights of the colour scale and texts: each stage owns one unit of the scale.
  function withCells(trace) {
    const cells = trace._cells;
    const counts = unpacked(cells.counts, cells.wide ? Uint32Array : Uint16Array);
    const [dominant, shares, second, others] = [cells.dominant, cells.shares, cells.second, cells.others].map((packed) => unpacked(packed, Uint8Array));
    const causes = (cell) => {
      const most = `mostly <b>${cells.labels[dominant[cell]]}</b> ${shares[cell]}${THIN}%`;
      const next = 100 - shares[cell] - others[cell];
      return next > 0 ? `${most},<br>then ${cells.labels[second[cell]]} ${next}${THIN}%` : most;
    };
    const deepest = Math.log1p(counts.reduce((most, number) => Math.max(most, number), 1));
    const z = [];
    const text = [];
    for (let start = 0; start < counts.length; start += cells.columns) {
      const row = [];
      const words = [];
      for (let cell = start; cell < start + cells.columns; cell += 1) {
        const depth = Math.log1p(counts[cell]) / deepest;
        const floor = cells.byStage ? dominant[cell] + 0.02 : 0.03;
        row.push(counts[cell] ? floor + 0.93 * depth : null);
        words.push(counts[cell] ? `${cells.times[cell - start]} \u00b7 ${cells.rows[start / cells.columns]}<br>${counts[cell]} request${counts[cell] === 1 ? "" : "s"}, ${causes(cell)}` : "");
      }
      z.push(row);
      text.push(words);
    }
    const { _cells, ...rest } = trace;
    return { ...rest, z, text };
  }

  // ---- times: a time axis counts milliseconds since the epoch, so that both of two hours of the same name have their place. Its
  // `_clock` has the reader's clocks: from when on, distance to UTC, name.

  const [SECOND, MINUTE, HOUR, DAY] = [1e3, 6e4, 36e5, 864e5];
  const STEPS = [
    ...[1, 2, 5, 10, 15, 30].map((number) => number * SECOND), ...[1, 2, 5, 10, 15, 30].map((number) => number * MINUTE),
    ...[1, 2, 3, 6, 12].map((number) => number * HOUR), ...[1, 2, 7, 14, 28, 56].map((number) => number * DAY),
  ];
  const FIRST_MONDAY = 4 * DAY;
  const TICKS = { wide: 6, narrow: 4 };

  // Ticks at round times of the reader's clock; the first one after a change of the clock has the clock's name.
  app.timeTicks = function (clock, [from, to]) {
    const most = innerWidth < NARROW ? TICKS.narrow : TICKS.wide;
    const step = STEPS.find((length) => (to - from) / length <= most) || STEPS[STEPS.length - 1];
    const ticks = { tickmode: "array", tickvals: [], ticktext: [] };
    clock.forEach(([start, offset, name], index) => {
      const first = FIRST_MONDAY + Math.ceil(((index ? Math.max(start, from) : from) + offset - FIRST_MONDAY) / step) * step;
      const end = Math.min(index + 1 < clock.length ? clock[index + 1][0] : Infinity, to + 1);
      for (let wall = first; wall - offset < end; wall += step) {
        const [, day, month, , time] = new Date(wall).toUTCString().split(" ");
        const text = wall % DAY ? time.slice(0, step < MINUTE ? 8 : 5) : `${+day} ${month}`;
        ticks.tickvals.push(wall - offset);
        ticks.ticktext.push(index && wall === first && step < DAY && start > from ? `${text} ${name}` : text);
      }
    });
    return ticks;
  };

  const FONT = "Inter, system-ui, sans-serif";
  const AXIS = {
    gridcolor: "$grid", linecolor: "$border", tickcolor: "$border", zeroline: false, showline: false, tickangle: 0,
    automargin: false, tickfont: { size: 11, color: "$muted" },
  };
  const BASE = {
    font: { family: FONT, size: 11, color: "$muted" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 12, t: 10, b: 26 }, showlegend: false, autosize: true,
    hovermode: "x", hoverdistance: 40, spikedistance: -1, dragmode: "zoom", transition: { duration: 0 },
    hoverlabel: {
      bgcolor: "$raised", bordercolor: "$border", align: "left", font: { family: FONT, size: 12, color: "$ink" },
    },
  };

  // Nothing may leave the page: no mode bar, no "send to cloud", no server for it.
  app.PLOT_CONFIG = {
    displayModeBar: false, showSendToCloud: false, plotlyServerURL: "", responsive: false, scrollZoom: false,
    doubleClick: false, displaylogo: false,
  };

  app.expanded = function (spec, theme) {
    const narrow = innerWidth < NARROW;
    let layout = narrow ? merged(spec.layout, spec.narrow) : spec.layout;
    const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const timed = (axis) => (axis._clock ? { ...AXIS, ...app.timeTicks(axis._clock, axis.range) } : AXIS);
    layout = merged(merged(BASE, Object.fromEntries(axes.map((key) => [key, timed(layout[key])]))), layout);
    const data = spec.data.map((trace) => {
      const shown = withPattern(stepped(trace));
      const whole = shown._cells ? withCells(shown) : shown;
      // Gaps hide cells that are narrower than two pixels.
      return narrow && whole.type === "heatmap" ? { ...whole, xgap: 0, ygap: 0 } : whole;
    });
    const colours = palette(theme);
    return { data: walk(data, colours), layout: walk(layout, colours) };
  };

  app.duration = function (seconds) {
    const size = Math.abs(seconds);
    // As in formatting.py.
    if (size < 5e-9) return "0" + THIN + "ms";
    const written = (value, unit, digits) => value.toFixed(digits).replace("-", "\u2212") + THIN + unit;
    const three = (value, unit) => {
      const rounded = Math.abs(+value.toPrecision(3));
      return written(+value.toPrecision(3), unit, rounded >= 100 ? 0 : rounded >= 10 ? 1 : 2);
    };
    if (Math.round(size * 1e6) < 1000) return three(seconds * 1e6, "µs");
    if (+size.toPrecision(3) < 1) return three(seconds * 1e3, "ms");
    if (size < 59.95) return three(seconds, "s");
    const whole = Math.round(size);
    return `${seconds < 0 ? "\u2212" : ""}${Math.floor(whole / 60)}${THIN}m\u00a0${whole % 60}${THIN}s`;
  };
})(window.stagelens);
