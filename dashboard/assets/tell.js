// A button that tells the server something: data-post is what, as JSON, for /api/v1/events or the address in data-to. Then the
// page is as it is now.
(function (app) {
  "use strict";

  app.post = async function (path, body) {
    const proof = document.querySelector("meta[name=stagelens-proof]").content;
    const headers = { "Content-Type": "application/json", "X-Stagelens-Proof": proof };
    const answer = await fetch(path, { method: "POST", headers, body, redirect: "manual" });
    if (answer.ok || answer.type === "opaqueredirect") return;
    const { error, cure } = await answer.json();
    throw new Error(cure ? `${error}: ${cure}` : error);
  };

  async function told(button) {
    button.disabled = true;
    try {
      await app.post(button.dataset.to || "/api/v1/events", button.dataset.post);
      // An incident is no data: the beat of the refresh would see nothing new.
      if (button.dataset.to) location.reload();
      else app.refresh();
    } catch (error) {
      app.said(error.message);
    } finally {
      button.disabled = false;
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-post]");
    if (button) told(button);
    if (event.target.closest("button[data-signout]")) {
      app.post("/signout", "").then(() => location.assign("/signin"), (error) => app.said(error.message));
    }
  });
})(window.stagelens);
