// Buttons that write: they send data-post as JSON to data-to (default /api/v1/events); and the field for a note on an incident.
// Then the page is loaded again, and the result is announced.
(function (app) {
  "use strict";

  app.post = async function (path, body) {
    const token = document.querySelector("meta[name=csrf-token]").content;
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": token };
    const response = await fetch(path, { method: "POST", headers, body, redirect: "manual" });
    if (response.type === "opaqueredirect") return {};
    const result = await response.json().catch(() => ({}));
    if (response.ok) return result;
    throw new Error(result.fix ? `${result.error}: ${result.fix}` : result.error || `status ${response.status}`);
  };

  // Not disabled: a disabled button loses the focus.
  async function act(button, to, body) {
    if (button.ariaDisabled === "true") return false;
    button.ariaDisabled = "true";
    try {
      const done = await app.post(to || "/api/v1/events", body);
      // An incident is no data: a refresh would see nothing new.
      await (to ? app.open() : app.refresh());
      if (done.summary) app.announce(done.summary);
      return true;
    } catch (error) {
      app.announce(error.message);
      return false;
    } finally {
      button.ariaDisabled = null;
    }
  }

  function addNoteField(container) {
    const [label, input, button] = ["label", "input", "button"].map((name) => document.createElement(name));
    Object.assign(input, { type: "text", maxLength: 2000, autocomplete: "off" });
    Object.assign(button, { type: "button", className: "btn", textContent: "Add note" });
    label.append("Note", input);
    const send = async () => (await act(button, container.dataset.to, JSON.stringify({ text: input.value }))) && (input.value = "");
    button.addEventListener("click", send);
    input.addEventListener("keydown", (event) => event.key === "Enter" && send());
    container.append(label, button);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-post]");
    if (button) act(button, button.dataset.to, button.dataset.post);
    if (event.target.closest("button[data-signout]")) {
      app.post("/signout", "").then(() => location.assign("/signin"), (error) => app.announce(error.message));
    }
  });

  new MutationObserver(() => document.querySelectorAll(".note:empty").forEach(addNoteField)).observe(document, { childList: true, subtree: true });
})(window.stagelens);
