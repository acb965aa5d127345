// Runs before the first paint: the theme the reader chose, and the zone the server writes times in.
(function () {
  "use strict";
  try {
    const chosen = localStorage.getItem("stagelens-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (_) {
    // Storage may be forbidden; the system's preference holds then.
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  document.cookie = `stagelens_zone=${encodeURIComponent(zone)};path=/;SameSite=Strict;max-age=31536000`;
})();
