// Text fields in menus: each sets one key of the address, or adds to its values. They are created when their menu opens and are not the server's: one
// that is placed anew while the reader types loses letters.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  document.addEventListener("toggle", (event) => {
    if (event.target.matches && event.target.matches(".menu[open]")) event.target.querySelectorAll("[data-field]").forEach(filled);
  }, true);

  function filled(container) {
    const input = container.firstElementChild || createField(container);
    // The address may have changed since the menu was last open.
    input.value = container.dataset.value || "";
  }

  function createField(container) {
    const { example, name, list } = container.dataset;
    const input = document.createElement("input");
    Object.assign(input, { type: "text", placeholder: example, autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", `${name}, such as ${example}`);
    if (list) input.setAttribute("list", list);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const values = [container.dataset.before, input.value.trim()].filter(Boolean);
      app.go(app.address({ [container.dataset.field]: values.join(","), n: "" }));
    });
    container.append(input);
    return input;
  }
})(window.stagelens);
