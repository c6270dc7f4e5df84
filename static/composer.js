/**
 * Where the reader writes. The draft is saved as it is typed, and the one button sends or stops.
 */

import { read, write } from "./storage.js";

const SAVE_AFTER_MS = 300;

export class Composer {
  #saveTimer = 0;
  #busy = false;
  #field;
  #button;
  #on;

  /**
   * @param {{form: HTMLFormElement, field: HTMLTextAreaElement, button: HTMLButtonElement}} elements
   * @param {{send: (text: string) => void, stop: () => void}} on
   */
  constructor({ form, field, button }, on) {
    this.#field = field;
    this.#button = button;
    this.#on = on;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#busy) on.stop();
      else this.#send();
    });
    field.addEventListener("keydown", (event) => {
      // While an input method composes a word, Enter belongs to it.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#busy) this.#send();
    });
    field.addEventListener("input", () => {
      this.#fit();
      this.#refresh();
      clearTimeout(this.#saveTimer);
      this.#saveTimer = window.setTimeout(() => this.#save(), SAVE_AFTER_MS);
    });
    window.addEventListener("pagehide", () => this.#save());
    this.text = read("draft") ?? "";
  }

  get text() {
    return this.#field.value;
  }

  set text(text) {
    this.#field.value = text;
    this.#save();
    this.#fit();
    this.#refresh();
  }

  focus() {
    this.#field.focus();
  }

  /**
   * @param {boolean} busy the button stops the answer
   * @param {boolean} stopping it was already asked to
   */
  setBusy(busy, stopping) {
    this.#busy = busy;
    this.#button.dataset.mode = busy ? "stop" : "send";
    this.#button.setAttribute("aria-label", busy ? "Stop" : "Send");
    this.#button.title = busy ? "Stop (Esc)" : "Send (Enter)";
    this.#refresh(stopping);
  }

  #send() {
    const text = this.text.trim();
    if (text === "") return;
    this.text = "";
    this.#on.send(text);
  }

  #refresh(stopping = false) {
    this.#button.disabled = this.#busy ? stopping : this.text.trim() === "";
  }

  #save() {
    clearTimeout(this.#saveTimer);
    write("draft", this.#field.value);
  }

  /** Grows the field with its text where the style sheet cannot (`field-sizing`). */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }
}
