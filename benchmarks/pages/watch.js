// When the document last changed, on the page's own clock.
window.__changed = 0;
new MutationObserver(() => {
  window.__changed = performance.now();
}).observe(document, { childList: true, subtree: true, attributes: true, characterData: true });
