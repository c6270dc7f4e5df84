/**
 * Where the reader writes. Each chat has a draft of its own, saved as it is typed, and files that
 * go along; the one button sends or stops.
 */

import { fileView } from "./file_view.js";
import { iconButton } from "./icon.js";

/** @typedef {import("../model/chat.js").Attachment} Attachment */

const SAVE_AFTER_MS = 300;
const MOST_CHARACTERS = 1_000_000;
/** Longer texts are pasted as a file: with more, browsers lay the field out for seconds. */
const MOST_PASTED = 20_000;

/**
 * @typedef {object} On
 * @property {(text: string, files: Attachment[]) => void} send
 * @property {() => void} early it would be sent, but for an answer that is being written
 * @property {() => void} stop
 * @property {(chatId: string, text: string) => void} draft it is to be kept
 * @property {(chatId: string) => Attachment[]} attached the files that wait in a chat
 * @property {(chatId: string, files: Attachment[]) => void} files they are to be kept
 * @property {(words: string) => void} say for screen readers, and below the field
 */

/**
 * @typedef {object} Elements
 * @property {HTMLFormElement} form
 * @property {HTMLTextAreaElement} field
 * @property {HTMLButtonElement} button
 * @property {HTMLButtonElement} attach
 * @property {HTMLInputElement} picker
 * @property {HTMLElement} files
 */

export class Composer {
  #saveTimer = 0;
  #busy = false;
  #chatId = "";
  #elements;
  #on;

  /**
   * @param {Elements} elements
   * @param {On} on
   */
  constructor(elements, on) {
    const { form, field, button, attach, picker } = elements;
    this.#elements = elements;
    this.#on = on;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#busy) on.stop();
      else this.#send();
    });
    button.addEventListener("click", (event) => {
      // The other half of a double click on Send is not meant for Stop.
      if (event.detail > 1) event.preventDefault();
    });
    button.addEventListener("keydown", (event) => event.repeat && event.preventDefault());
    field.addEventListener("keydown", (event) => {
      // While an input method composes a word, Enter belongs to it.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#busy) this.#send();
      else if (!this.#empty) on.early();
    });
    field.addEventListener("input", () => {
      this.#fit();
      this.#refresh();
      clearTimeout(this.#saveTimer);
      this.#saveTimer = window.setTimeout(() => this.save(), SAVE_AFTER_MS);
    });
    field.addEventListener("paste", (event) => {
      const text = event.clipboardData?.getData("text/plain") ?? "";
      if (text.length <= MOST_PASTED) return this.#take(event.clipboardData, event);
      event.preventDefault();
      void this.attach([new File([text], "Pasted text.txt")]);
    });
    attach.addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      void this.attach([...(picker.files ?? [])]);
      picker.value = "";
    });
    window.addEventListener("pagehide", () => this.save());
  }

  get text() {
    return this.#elements.field.value;
  }

  set text(text) {
    this.#elements.field.value = text;
    this.save();
    this.#fit();
    this.#refresh();
  }

  /**
   * @param {string} chatId
   * @param {string} draft
   */
  show(chatId, draft) {
    if (chatId === this.#chatId) return;
    this.save();
    // What was written before there was any chat goes before what the chat has.
    const early = this.#chatId ? "" : this.text;
    this.#chatId = chatId;
    this.#elements.field.value = early || draft;
    if (early) this.save();
    this.#fit();
    this.#showFiles();
    this.#refresh();
  }

  /** Keeps what is written, and has nothing more to do with that chat. */
  leave() {
    this.save();
    this.#chatId = "";
    this.#elements.field.value = "";
  }

  focus() {
    this.#elements.field.focus();
  }

  /**
   * @param {boolean} busy the button stops the answer
   * @param {boolean} stopping it was already asked to
   */
  setBusy(busy, stopping) {
    const { button } = this.#elements;
    this.#busy = busy;
    button.dataset.mode = busy ? "stop" : "send";
    button.setAttribute("aria-label", busy ? "Stop" : "Send");
    button.title = busy ? "Stop (Esc)" : "Send (Enter)";
    this.#refresh(stopping);
  }

  /** Keeps the draft now. */
  save() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = 0;
    if (this.#chatId) this.#on.draft(this.#chatId, this.text);
  }

  /**
   * Reads files as text; one that is none is refused.
   * @param {File[]} files
   */
  async attach(files) {
    const chatId = this.#chatId;
    const taken = [];
    for (const file of files) {
      const text = await readText(file);
      if (text === null) {
        this.#on.say(`${file.name} is not a text, or is too long, and was not attached.`);
        continue;
      }
      taken.push({ name: file.name, text });
    }
    // All at once: each time all the files of the chat are kept anew.
    if (taken.length > 0) this.#on.files(chatId, [...this.#on.attached(chatId), ...taken]);
    this.#showFiles();
    this.#refresh();
    this.focus();
  }

  get #empty() {
    return this.text.trim() === "" && this.#attached.length === 0;
  }

  get #attached() {
    return this.#on.attached(this.#chatId);
  }

  #send() {
    const text = this.text.trim();
    const files = this.#attached;
    if (this.#empty || this.#busy || !this.#chatId) return;
    if (files.length > 0) this.#on.files(this.#chatId, []);
    this.#showFiles();
    this.text = "";
    this.#on.send(text, files);
  }

  /**
   * Takes files that are dropped anywhere on the chat: a browser would leave the page for one.
   * @param {HTMLElement} pane
   */
  takeDropsOn(pane) {
    const drag = (/** @type {DragEvent} */ event, /** @type {boolean} */ over) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      pane.toggleAttribute("data-dragged", over);
    };
    pane.addEventListener("dragover", (event) => drag(event, true));
    pane.addEventListener("dragleave", (event) => {
      if (!pane.contains(/** @type {Node|null} */ (event.relatedTarget))) drag(event, false);
    });
    pane.addEventListener("drop", (event) => {
      drag(event, false);
      this.#take(event.dataTransfer, event);
    });
  }

  /**
   * @param {DataTransfer|null} data
   * @param {Event} event
   */
  #take(data, event) {
    const files = [...(data?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    void this.attach(files);
  }

  #showFiles() {
    const { files } = this.#elements;
    const attached = this.#attached;
    files.hidden = attached.length === 0;
    files.replaceChildren(
      ...attached.map((file) => {
        const item = document.createElement("li");
        const button = iconButton("i-close", `Leave ${file.name} out`);
        button.addEventListener("click", () => {
          this.#on.files(
            this.#chatId,
            this.#attached.filter((other) => other !== file),
          );
          this.#showFiles();
          this.#refresh();
          this.focus();
        });
        item.append(fileView(file, file.name), button);
        return item;
      }),
    );
  }

  #refresh(stopping = false) {
    this.#elements.button.disabled = this.#busy ? stopping : this.#empty;
  }

  /** Grows the field with its text where the style sheet cannot (`field-sizing`). */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    const { field } = this.#elements;
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  }
}

/**
 * @param {File} file
 * @returns {Promise<string|null>} null for what is no text, or too long
 */
async function readText(file) {
  if (file.size > 4 * MOST_CHARACTERS) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") || text.length > MOST_CHARACTERS ? null : text;
  } catch {
    return null;
  }
}
