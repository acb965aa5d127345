// Replaces parts of the page with HTML of the server as it arrives. On the same page only nodes that differ change, so that open
// details, focus, selection, scroll positions and charts stay.
window.stagelens = window.stagelens || {};
(function (app) {
  "use strict";

  // Attributes that the reader or a script has set, and that the server does not know.
  const BROWSER_ATTRIBUTES = new Set(["open", "popover", "data-drawn", "data-narrow", "data-new"]);
  const KEYED = new Set(["role", "tabindex", "aria-roledescription", "aria-keyshortcuts"]);
  const isSetByBrowser = (name, node) => BROWSER_ATTRIBUTES.has(name) || (KEYED.has(name) && "chart" in node.dataset);
  // Elements that only arrange others, which are put in their places one by one.
  const LAYOUT = ".page, .grid";

  const isSameNode = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName
    && (a.nodeType !== 1 || (a.id === b.id && a.dataset.chart === b.dataset.chart && a.dataset.field === b.dataset.field));

  function setAttributes(node, wanted) {
    for (const { name, value } of wanted.attributes) {
      if (node.getAttribute(name) !== value && !(isSetByBrowser(name, node) && node.hasAttribute(name))) node.setAttribute(name, value);
    }
    for (const { name } of [...node.attributes]) {
      if (!wanted.hasAttribute(name) && !isSetByBrowser(name, node)) node.removeAttribute(name);
    }
  }

  function patchNode(node, wanted) {
    if (node.nodeType !== 1) {
      if (node.data !== wanted.data) node.data = wanted.data;
      return;
    }
    setAttributes(node, wanted);
    // The browser fills charts and fields.
    if (!node.matches("[data-chart], [data-field]")) patchChildren(node, wanted);
  }

  function patchChildren(parent, wanted) {
    const [before, after] = [[...parent.childNodes], [...wanted.childNodes]];
    after.forEach((next, index) => put(parent, before[index], next));
    before.slice(after.length).forEach((rest) => rest.remove());
  }

  // Put `next` in the place of `now`, or last, and return what stands there then.
  function put(parent, now, next) {
    if (now && isSameNode(now, next)) {
      patchNode(now, next);
      next.remove();
      return now;
    }
    if (now) now.replaceWith(next);
    else parent.append(next);
    return next;
  }

  // Put panels of the page that stands there in their places, and return the state with which they came.
  app.placePanels = function (text) {
    const parsed = new DOMParser().parseFromString(text, "text/html");
    parsed.querySelectorAll("[data-part]").forEach((next) => {
      const now = document.querySelector(`#root [data-part="${CSS.escape(next.dataset.part)}"]`);
      if (!now) return;
      patchNode(now, next);
      app.drawAll(now);
    });
    return JSON.parse(parsed.getElementById("seen").textContent);
  };

  // Put the parts of a page in their places while its HTML arrives. `same`: whether it is the page that stands there, with newer
  // data or another window.
  app.arrival = function (same) {
    const root = document.getElementById("root");
    // Nothing is loaded or executed in this document; complete nodes move out of it while the parser continues.
    const parsed = document.implementation.createHTMLDocument("");
    parsed.write("<body>");
    // The page in the document, and the number of children that have moved out of each element.
    let page = null;
    const moved = new Map();

    // Move the children of `from` that have arrived to `to`; the last one may be incomplete.
    function move(from, to, complete) {
      let index = moved.get(from) || 0;
      for (let next; (next = from.firstChild); index += 1) {
        const whole = complete || Boolean(next.nextSibling);
        const now = to.childNodes[index];
        if (next.nodeType === 1 && next.matches(LAYOUT)) {
          const there = now && isSameNode(now, next) ? now : put(to, now, next.cloneNode(false));
          setAttributes(there, next);
          move(next, there, whole);
          if (!whole) break;
          next.remove();
        } else if (whole) {
          const there = put(to, now, next);
          if (there.nodeType === 1) {
            there.dataset.new = "";
            app.drawAll(there);
          }
        } else break;
      }
      moved.set(from, index);
      if (complete) [...to.childNodes].slice(index).forEach((rest) => rest.remove());
    }

    function putTemplates(complete) {
      parsed.body.querySelectorAll(":scope > template").forEach((template) => {
        if (!complete && !template.nextSibling) return;
        patchChildren(document.getElementById(template.dataset.into), template.content);
        template.remove();
      });
    }

    return {
      // Take the next piece, `last` or not, and return whether a part of the page has arrived.
      take(html, last) {
        parsed.write(html);
        putTemplates(last);
        const next = parsed.body.querySelector(":scope > .page");
        if (!next) return false;
        if (!page) {
          page = same && root.querySelector(":scope > .page");
          if (!page) root.replaceChildren((page = next.cloneNode(false)));
        }
        setAttributes(page, next);
        move(next, page, last || Boolean(next.nextSibling));
        return true;
      },
      // Return the state of the page, with which the stream ends; null if it broke off.
      end() {
        root.querySelectorAll("[data-new]").forEach((element) => delete element.dataset.new);
        const state = parsed.getElementById("seen");
        return state && JSON.parse(state.textContent);
      },
    };
  };
})(window.stagelens);
