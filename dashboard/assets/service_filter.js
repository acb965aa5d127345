// The field that filters the list of services: its text becomes `q` of the address after a pause in typing. The server does not
// render it, because a field that is replaced while the reader types loses letters.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  const PAUSE_MS = 350;

  function addField(container) {
    const input = document.createElement("input");
    Object.assign(input, { type: "search", value: container.dataset.typed, placeholder: "Filter services", autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", "Filter services by name or model");
    let timer;
    const apply = function () {
      clearTimeout(timer);
      const typed = input.value.trim();
      if (typed !== (app.query().get("q") || "")) app.go(app.address({ q: typed, n: "" }));
    };
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(apply, PAUSE_MS);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") apply();
      if (event.key === "Escape") input.blur();
    });
    container.append(input);
  }

  // Back and forward change the address under the field.
  addEventListener("popstate", () => {
    document.querySelectorAll(".service-filter input").forEach((input) => (input.value = app.query().get("q") || ""));
  });

  new MutationObserver(() => document.querySelectorAll(".service-filter[data-typed]:empty").forEach(addField)).observe(document, { childList: true, subtree: true });
})(window.stagelens);
