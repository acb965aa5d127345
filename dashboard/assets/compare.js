// A text of the page, such as the report of a comparison, copied with whole links: without the host, which the server cannot know behind a proxy, they
// lead nowhere.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copies]");
    if (!button) return;
    const text = button.dataset.text || document.getElementById(button.dataset.copies).textContent;
    app.copied(text.replaceAll("](/", `](${location.origin}/`), `${button.dataset.copied || "Text"} copied`);
  });
})(window.stagelens);
