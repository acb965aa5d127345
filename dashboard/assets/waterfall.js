// The waterfall of a trace: dragging along its axis zooms in, a double click shows the whole again. The bars stand at
// percents of their lane, so that a wider lane that is shifted to the left is all it takes.
(function () {
  "use strict";

  const NARROWEST = 0.002;
  let drag = null;

  const share = (event, axis) => {
    const box = axis.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };

  function zoomed(table, from, to) {
    table.style.setProperty("--zoom", 1 / (to - from));
    table.style.setProperty("--from", from);
    table.classList.toggle("zoomed", to - from < 1);
  }

  document.addEventListener("pointerdown", (event) => {
    const axis = event.target.closest(".wf thead .lane");
    if (!axis || event.button !== 0) return;
    const table = axis.closest(".wf");
    const inside = axis.querySelector(".ax");
    const mark = document.createElement("i");
    mark.className = "mark";
    inside.append(mark);
    drag = { inside, table, mark, start: share(event, inside) };
    event.preventDefault();
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const now = share(event, drag.inside);
    drag.mark.style.left = `${Math.min(now, drag.start) * 100}%`;
    drag.mark.style.width = `${Math.abs(now - drag.start) * 100}%`;
  });
  addEventListener("pointerup", (event) => {
    if (!drag) return;
    const [from, to] = [drag.start, share(event, drag.inside)].sort((a, b) => a - b);
    drag.mark.remove();
    if (to - from > NARROWEST) zoomed(drag.table, from, to);
    drag = null;
  });
  document.addEventListener("dblclick", (event) => {
    const table = event.target.closest(".wf");
    if (table) zoomed(table, 0, 1);
  });
})();
