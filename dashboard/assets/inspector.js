// The table beside the percentile chart: p50 against the percentile under the pointer. Its rows highlight a stage in all
// charts, and leave one out of them.
(function (app) {
  "use strict";

  function inspector() {
    const box = document.querySelector("[data-inspector]");
    return box && { box, values: JSON.parse(box.dataset.inspector) };
  }

  app.inspect = function (index) {
    const current = inspector();
    if (!current) return;
    const { box, values } = current;
    const shown = index < 0 ? values.default : index;
    let [base, total] = [0, 0];
    box.querySelectorAll("tr[data-stage]").forEach((row) => {
      const [before, now] = [values.base[row.dataset.stage], values.stages[row.dataset.stage][shown]];
      base += before;
      total += now;
      const cell = row.querySelector("[data-now]");
      cell.textContent = app.duration(now);
      const share = (values.shares[row.dataset.stage] || [])[shown];
      if (share) cell.title = `${share[0]} to ${share[1]}\u202f% of the latency, with 95\u202f% confidence`;
      const bar = row.querySelector(".dv i");
      bar.style.width = `${Math.max(0.6, Math.min(100, (Math.abs(now - before) / values.widest) * 100))}%`;
      bar.classList.toggle("less", now < before);
      bar.hidden = Math.abs(now - before) <= values.errors[shown];
      row.querySelector(".dv").title = signed(now - before);
    });
    document.querySelectorAll("[data-percentile]").forEach((element) => (element.textContent = values.percentiles[shown]));
    box.querySelector("[data-total]").textContent = (values.wide[shown] ? "≈ " : "") + app.duration(total);
    const added = box.querySelector("[data-added]");
    added.textContent = signed(total - base);
    added.className = total - base > values.errors[shown] ? "bad" : "muted";
    document.querySelector("[data-band]").textContent = values.bands[shown];
    document.querySelector("[data-aside]").textContent = aside(values, shown);
  };

  app.pinned = () => inspector().values.default;

  app.percentileWords = function (index) {
    const { values } = inspector();
    const stages = Object.entries(values.stages).map(([stage, seconds]) => [stage, seconds[index]]).sort((a, b) => b[1] - a[1]);
    const name = (stage) => document.querySelector(`tr[data-stage="${CSS.escape(stage)}"] .lit`).textContent;
    const most = stages.slice(0, 3).map(([stage, seconds]) => `${name(stage)} ${app.duration(seconds)}`);
    return `${values.percentiles[index]}: ${app.duration(stages.reduce((sum, [, seconds]) => sum + seconds, 0))}, of which ${most.join(", ")}`;
  };

  const signed = (seconds) => (seconds >= 5e-9 ? "+" : "") + app.duration(seconds);

  // The same words as in inspector.py.
  function aside(values, shown) {
    const sentences = values.held[shown] ? [values.held[shown]] : [];
    if (values.wide[shown]) sentences.push(`The value is in ${values.bands[shown].split(",")[0]}: ${values.fixed}.`);
    if (values.mixed[shown]) {
      const [first, most, second, less] = values.mixed[shown];
      sentences.push(`Here ${most}\u202f% of requests are mostly ${values.causes[first]}, ${less}\u202f% mostly ${values.causes[second]}.`);
    }
    return sentences.join(" ");
  }

  // Pinning changes the address, and the panels that show requests at the percentile.
  app.pin = function (index) {
    const current = inspector();
    if (!current) return;
    const name = current.values.percentiles[index].slice(1);
    history.replaceState(history.state, "", app.address({ p: name === "99" ? "" : name }));
    app.open();
    app.announce(`p${name} selected`);
  };

  // ---- stages: a click highlights one, Alt and a click leaves it out

  function light(button) {
    app.lit = app.lit === button.dataset.lit ? "" : button.dataset.lit;
    app.relight();
    app.redraw();
  }

  // Show on the rows which stage is highlighted; a page that was built anew has forgotten it.
  app.relight = function () {
    document.querySelectorAll("button[data-lit]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.lit === app.lit));
      button.closest("tr").classList.toggle("on", button.dataset.lit === app.lit);
    });
    const row = again && document.querySelector(`tr[data-stage="${CSS.escape(again)}"] button`);
    if (row) row.focus({ preventScroll: true });
    again = "";
  };

  // The row that has the focus keeps it while the page is built anew.
  let again = "";
  function leaveOut(button) {
    const stage = (again = button.closest("tr").dataset.stage);
    const hidden = (new URLSearchParams(location.search).get("hide") || "").split(",").filter(Boolean);
    const others = hidden.filter((other) => other !== stage);
    app.go(app.address({ hide: (others.length < hidden.length ? others : [...hidden, stage]).join(",") }));
  }

  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-stage]");
    const button = row && row.querySelector("button[data-lit]");
    if (button && !getSelection().toString()) (event.altKey ? leaveOut : light)(button);
  });

  // With Alt the Enter key presses no button.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.altKey || !event.target.matches("button[data-lit]")) return;
    event.preventDefault();
    leaveOut(event.target);
  });
})(window.stagelens);
