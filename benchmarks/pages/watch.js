// When the document last changed and when the page in it first changed after `__pressed`, on the page's own clock, and how far what
// stood there has moved.
window.__changed = 0;
window.__begun = 0;
window.__shift = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.__shift += each.hadRecentInput ? 0 : each.value)))
  .observe({ type: "layout-shift", buffered: true });
new MutationObserver((changes) => {
  window.__changed = performance.now();
  const isPart = ({ type, target }) => type !== "attributes" && target.parentElement && target.parentElement.closest("#root");
  if (window.__pressed && !window.__begun && changes.some(isPart)) window.__begun = window.__changed;
}).observe(document, { childList: true, subtree: true, attributes: true, characterData: true });
