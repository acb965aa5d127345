// What the server wrote, put in its place. On the same page only what differs is touched, so that open details, the focus,
// what is selected and scrolled, and the charts stay.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  // What the reader or a script of ours has set, and the server does not know.
  const OURS = new Set(["open", "data-drawn", "data-narrow"]);

  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName
    && (a.nodeType !== 1 || (a.id === b.id && a.dataset.chart === b.dataset.chart && a.dataset.field === b.dataset.field));

  function dressed(node, wanted) {
    for (const { name, value } of wanted.attributes) {
      if (node.getAttribute(name) !== value && !(OURS.has(name) && node.hasAttribute(name))) node.setAttribute(name, value);
    }
    for (const { name } of [...node.attributes]) {
      if (!wanted.hasAttribute(name) && !OURS.has(name)) node.removeAttribute(name);
    }
  }

  function made(node, wanted) {
    if (node.nodeType !== 1) {
      if (node.data !== wanted.data) node.data = wanted.data;
      return;
    }
    dressed(node, wanted);
    // What is in a chart or in a field is not the server's.
    if (!node.matches("[data-chart], [data-field]")) filled(node, wanted);
  }

  function filled(parent, wanted) {
    const before = [...parent.childNodes];
    [...wanted.childNodes].forEach((next, place) => {
      const now = before[place];
      if (!now) parent.append(next);
      else if (alike(now, next)) made(now, next);
      else now.replaceWith(next);
    });
    before.slice(wanted.childNodes.length).forEach((rest) => rest.remove());
  }

  // `same`: whether it is the page that stands there, with newer data or another window.
  app.place = function (parent, html, same) {
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    if (same) filled(parent, parsed.content);
    else parent.replaceChildren(parsed.content);
  };
})(window.stagelens);
