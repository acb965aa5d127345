// When the document last changed, on the page's own clock, and how far what stood there has moved.
window.__changed = 0;
window.__shift = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.__shift += each.hadRecentInput ? 0 : each.value)))
  .observe({ type: "layout-shift", buffered: true });
new MutationObserver(() => {
  window.__changed = performance.now();
}).observe(document, { childList: true, subtree: true, attributes: true, characterData: true });
