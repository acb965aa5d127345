// Runs before the first paint: display preferences, the zone of the reader, and the parts of the frame that arrive late.
(function () {
  "use strict";
  try {
    Object.entries({ theme: /^(light|dark)$/, patterns: /^on$/, density: /^compact$/ }).forEach(([name, pattern]) => {
      const chosen = localStorage.getItem(`stagelens-${name}`) || "";
      if (pattern.test(chosen)) document.documentElement.dataset[name] = chosen;
    });
  } catch (_) {
    // Storage may be forbidden; the system's preference holds then.
  }
  // The title comes with the page, and parts of the frame after it; the last template may be incomplete until something follows it.
  const root = document.documentElement;
  root.dataset.loading = "";
  let titled = null;
  function placeParts(all) {
    const page = document.querySelector("#root [data-title]");
    // Once: a title is a change of the document, too.
    if (page && page !== titled) document.title = (titled = page).dataset.title;
    document.querySelectorAll("template[data-into]").forEach((template) => {
      if (!all && !template.nextSibling) return;
      document.getElementById(template.dataset.into).replaceChildren(template.content);
      template.remove();
    });
  }
  const arriving = new MutationObserver(() => placeParts(false));
  arriving.observe(root, { childList: true, subtree: true });
  document.addEventListener("DOMContentLoaded", () => {
    arriving.disconnect();
    placeParts(true);
  });
  // On the first visit the server does not know the zone: `shell_refresh.js` then loads the page again.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  if (root.dataset.zone === zone) delete root.dataset.zone;
  document.cookie = `stagelens_zone=${encodeURIComponent(zone)};path=/;SameSite=Strict;max-age=31536000`;
})();
