/**
 * How the connection is: the word in the header, the notice with its countdown above the composer,
 * and the question for an API key.
 */

import { keyStore } from "../store/storage.js";
import { phaseLabel, phaseWords } from "./words.js";

/** @typedef {import("../wire/connection.js").Phase} Phase */

/** What a browser lets a page send as a WebSocket's subprotocol: a token of RFC 9110. */
const SENDABLE_KEY = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]*$/;

export class LinkView {
  /** @type {Phase} */
  #phase = { name: "checking" };
  #ticker = 0;
  #by;
  #on;

  /**
   * @param {(id: string) => HTMLElement} by finds an element of the page
   * @param {{tryNow: () => void, key: (key: string) => void}} on
   */
  constructor(by, on) {
    this.#by = by;
    this.#on = on;
    by("try-now").addEventListener("click", on.tryNow);
    by("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#takeKey();
    });
    by("key-button").addEventListener("click", () =>
      this.#askForKey("Leave it empty to forget it."),
    );
    by("key-close").addEventListener("click", () => this.#closeKeyForm());
    by("key-button").hidden = keyStore.get() === "";
  }

  /** @param {Phase} phase */
  show(phase) {
    const before = this.#phase;
    this.#phase = phase;
    this.#by("link").dataset.phase =
      phase.name === "waiting" && phase.why === "loading" ? "loading" : phase.name;
    this.#by("link-text").textContent = phaseLabel(phase);
    if (phase.name === "key" && before.name !== "key") {
      this.#askForKey(
        phase.rejected
          ? "The server did not accept this key."
          : "This server answers only those who have its key.",
      );
    }
    if (phase.name === "open") this.#closeKeyForm();
    // A short look at the server between two delays does not make the notice come and go.
    if (phase.name !== "checking") this.#showNotice(phase);
  }

  /** @param {Phase} phase */
  #showNotice(phase) {
    const words = phaseWords(phase);
    const text = this.#by("notice-text");
    this.#by("notice").hidden = words === "";
    this.#by("notice").toggleAttribute("data-calm", phase.name === "waiting" && phase.why === "loading");
    if (text.textContent !== words) text.textContent = words;
    clearInterval(this.#ticker);
    if (phase.name !== "waiting") return;
    this.#by("try-now").hidden = phase.why === "loading";
    const tick = () => {
      const seconds = Math.max(0, Math.ceil((phase.until - performance.now()) / 1000));
      const count = phase.why === "loading" || seconds < 1 ? "" : `Trying again in ${seconds} s.`;
      this.#by("notice-count").textContent = count;
    };
    tick();
    this.#ticker = window.setInterval(tick, 1000);
  }

  /** @param {string} hint */
  #askForKey(hint) {
    this.#by("key-form").hidden = false;
    this.#by("key-hint").textContent = hint;
    this.#by("key-close").hidden = this.#phase.name === "key";
    // A reader who is writing keeps the cursor.
    if (/** @type {HTMLTextAreaElement} */ (this.#by("draft")).value === "")
      this.#by("key").focus();
  }

  #closeKeyForm() {
    const form = this.#by("key-form");
    if (form.contains(document.activeElement)) this.#by("draft").focus();
    form.hidden = true;
  }

  #takeKey() {
    const field = /** @type {HTMLInputElement} */ (this.#by("key"));
    const keep = /** @type {HTMLInputElement} */ (this.#by("key-keep"));
    const key = field.value.trim();
    if (!SENDABLE_KEY.test(key)) {
      this.#by("key-hint").textContent =
        "This key has characters that a browser cannot send with a WebSocket.";
      return;
    }
    field.value = "";
    if (key) keyStore.set(key, keep.checked);
    else keyStore.forget();
    this.#by("key-button").hidden = key === "";
    this.#closeKeyForm();
    // The answer to the new key is news even where the last one was "key" too.
    this.#phase = { name: "checking" };
    this.#on.key(key);
  }
}
