// Text fields in menus: each sets one key of the address. They are made when their menu opens and are not React's: one that
// is rendered anew while somebody types loses letters.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  document.addEventListener("toggle", (event) => {
    if (event.target.matches && event.target.matches(".menu[open]")) event.target.querySelectorAll("[data-field]").forEach(filled);
  }, true);

  function filled(place) {
    if (place.firstElementChild) return;
    const { field, value, example } = place.dataset;
    const input = document.createElement("input");
    Object.assign(input, { type: "text", value, placeholder: example, autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", `Another value, such as ${example}`);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") app.go(app.address({ [field]: input.value.trim() }));
    });
    place.append(input);
  }
})(window.stagelens);
