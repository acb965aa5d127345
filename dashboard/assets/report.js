// A report stands alone: no frame, no server. What charts ask of the frame is answered here, then they are drawn.
(function (app) {
  "use strict";

  const root = document.documentElement;

  app.go = function () {};
  app.back = function () {};
  app.address = () => "";
  app.common = () => "";
  app.query = () => new URLSearchParams();
  app.pin = (index) => app.inspect(index);
  const status = Object.assign(document.createElement("div"), { className: "sr", role: "status" });
  document.body.append(status);
  app.announce = (text) => (status.textContent = text);
  // Dragging zooms this one chart, a double click shows all of it again.
  app.PLOT_CONFIG.doubleClick = "reset";
  app.zoomsCharts = true;

  document.querySelector("[data-theme-switch]").addEventListener("click", () => {
    root.dataset.theme = app.theme() === "dark" ? "light" : "dark";
    app.redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", app.redraw);

  // A report has no ids: a button copies the text before it. Where the browser does not allow that, the text is selected.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copies]");
    if (!button) return;
    const text = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
    }
  });

  app.drawAll(document);
})(window.stagelens);
