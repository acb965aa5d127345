// The field that narrows the list of services: what is typed goes to `q` of the address, once nothing more is typed. It is
// not the server's: one that is placed anew while somebody types loses letters.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  const PAUSE = 350;

  function filled(place) {
    const input = document.createElement("input");
    Object.assign(input, { type: "search", value: place.dataset.typed, placeholder: "Filter services", autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", "Filter services by name or model");
    let pause;
    const sent = function () {
      clearTimeout(pause);
      const typed = input.value.trim();
      if (typed !== (app.query().get("q") || "")) app.go(app.address({ q: typed, n: "" }));
    };
    input.addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(sent, PAUSE);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sent();
      if (event.key === "Escape") input.blur();
    });
    place.append(input);
  }

  // Back and forward change the address under the field.
  addEventListener("popstate", () => {
    document.querySelectorAll(".sieve input").forEach((input) => (input.value = app.query().get("q") || ""));
  });

  new MutationObserver(() => document.querySelectorAll(".sieve[data-typed]:empty").forEach(filled)).observe(document, { childList: true, subtree: true });
})(window.stagelens);
