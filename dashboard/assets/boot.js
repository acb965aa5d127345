// Runs before the first paint: what the reader likes to see, the zone the server writes times in, the first picture.
(function () {
  "use strict";
  try {
    Object.entries({ theme: /^(light|dark)$/, patterns: /^on$/, density: /^compact$/ }).forEach(([name, known]) => {
      const chosen = localStorage.getItem(`stagelens-${name}`) || "";
      if (known.test(chosen)) document.documentElement.dataset[name] = chosen;
    });
  } catch (_) {
    // Storage may be forbidden; the system's preference holds then.
  }
  // The server sends a picture of the page along; it goes, before the next paint, once the page itself stands.
  new MutationObserver((_, watch) => {
    if (!document.querySelector("#root [data-title]")) return;
    document.getElementById("first")?.remove();
    watch.disconnect();
  }).observe(document.documentElement, { childList: true, subtree: true });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  document.cookie = `stagelens_zone=${encodeURIComponent(zone)};path=/;SameSite=Strict;max-age=31536000`;
})();
