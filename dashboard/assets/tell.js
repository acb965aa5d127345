// What tells the server something: a button whose data-post is what, as JSON, for /api/v1/events or the address in data-to, and the
// field for a note. Then the page is as it is now, and says what was done.
(function (app) {
  "use strict";

  app.post = async function (path, body) {
    const proof = document.querySelector("meta[name=stagelens-proof]").content;
    const headers = { "Content-Type": "application/json", "X-Stagelens-Proof": proof };
    const answer = await fetch(path, { method: "POST", headers, body, redirect: "manual" });
    if (answer.type === "opaqueredirect") return {};
    const found = await answer.json().catch(() => ({}));
    if (answer.ok) return found;
    throw new Error(found.cure ? `${found.error}: ${found.cure}` : found.error || `status ${answer.status}`);
  };

  // Not disabled: a disabled button loses the focus.
  async function act(button, to, body) {
    if (button.ariaDisabled === "true") return false;
    button.ariaDisabled = "true";
    try {
      const done = await app.post(to || "/api/v1/events", body);
      // An incident is no data: the beat of the refresh would see nothing new.
      await (to ? app.open() : app.refresh());
      if (done.summary) app.said(done.summary);
      return true;
    } catch (error) {
      app.said(error.message);
      return false;
    } finally {
      button.ariaDisabled = null;
    }
  }

  function noted(place) {
    const [label, input, button] = ["label", "input", "button"].map((each) => document.createElement(each));
    Object.assign(input, { type: "text", maxLength: 2000, autocomplete: "off" });
    Object.assign(button, { type: "button", className: "btn", textContent: "Add note" });
    label.append("Note", input);
    const send = async () => (await act(button, place.dataset.to, JSON.stringify({ text: input.value }))) && (input.value = "");
    button.addEventListener("click", send);
    input.addEventListener("keydown", (event) => event.key === "Enter" && send());
    place.append(label, button);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-post]");
    if (button) act(button, button.dataset.to, button.dataset.post);
    if (event.target.closest("button[data-signout]")) {
      app.post("/signout", "").then(() => location.assign("/signin"), (error) => app.said(error.message));
    }
  });

  new MutationObserver(() => document.querySelectorAll(".note:empty").forEach(noted)).observe(document, { childList: true, subtree: true });
})(window.stagelens);
