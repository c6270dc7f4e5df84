/**
 * A question. It enters as a text node, so nothing in it can become markup.
 */

import { fileView } from "./file_view.js";
import { MessageView } from "./message_view.js";
import { shortened } from "./shortened.js";

/**
 * @typedef {import("./message_view.js").Actions} Actions
 * @typedef {import("./message_view.js").Context} Context
 * @typedef {import("../model/chat.js").Message} Message
 */

const KEEP_AFTER_MS = 300;

export class QuestionView extends MessageView {
  /** @type {HTMLFormElement|null} */
  #form = null;
  #timer = 0;
  #open = new AbortController();
  #actions;

  /**
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(message, actions) {
    super("question-template", message, actions);
    this.#actions = actions;
    this.set("text", shortened(message.text));
    this.parts.text.hidden = message.text === "";
    this.parts.files.hidden = message.attachments.length === 0;
    for (const file of message.attachments) {
      const item = document.createElement("li");
      const characters = file.text.length.toLocaleString("en");
      item.append(fileView(file, `${file.name}, ${characters} characters`));
      this.parts.files.append(item);
    }
    this.buttons.copy.hidden = !navigator.clipboard; // only secure contexts have one
    const edited = actions.edited(message); // before a reload, perhaps
    if (edited !== undefined) this.#edit(edited);
  }

  /**
   * @param {string} action
   * @override
   */
  onAction(action) {
    if (action === "edit") this.#edit(this.message.text).focus();
    else super.onAction(action);
  }

  /** @param {Context} context */
  update({ versions, near, last, busy }) {
    if (near) this.showIcons();
    this.buttons.answer.hidden = !last || busy;
    this.showVersions(versions);
  }

  /** @param {string} text */
  #edit(text) {
    const form = this.#form ?? this.#makeForm();
    this.#form = form;
    this.#showForm(true);
    const field = /** @type {HTMLTextAreaElement} */ (form.elements[0]);
    field.value = text;
    return field;
  }

  #leave() {
    this.#keepNoMore();
    this.#actions.keepEdit(this.message, null);
    this.#form?.remove();
    this.#form = null;
    this.#showForm(false);
    this.buttons.edit.focus();
  }

  /** @override */
  gone() {
    if (this.#form) this.#keep();
    this.#keepNoMore();
  }

  #keep() {
    const field = /** @type {HTMLTextAreaElement|undefined} */ (this.#form?.elements[0]);
    if (field) this.#actions.keepEdit(this.message, field.value);
  }

  #keepNoMore() {
    clearTimeout(this.#timer);
    this.#open.abort();
  }

  /** @param {boolean} open */
  #showForm(open) {
    this.element.toggleAttribute("data-editing", open);
    this.parts.text.hidden = open || this.message.text === "";
  }

  /** Only while it is used: with one in each question the browser's search for fields to fill takes
   * seconds in a long chat. */
  #makeForm() {
    const template = /** @type {HTMLTemplateElement} */ (document.getElementById("editing-template"));
    const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
    const form = /** @type {HTMLFormElement} */ (copy.firstElementChild);
    const field = /** @type {HTMLTextAreaElement} */ (form.elements[0]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text === "" && this.message.attachments.length === 0) return;
      this.#leave();
      this.#actions.ask(this.message, text);
    });
    field.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = window.setTimeout(() => this.#keep(), KEEP_AFTER_MS);
    });
    this.#open = new AbortController();
    window.addEventListener("pagehide", () => this.#keep(), { signal: this.#open.signal });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#leave();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    form.querySelector("[data-action=leave]")?.addEventListener("click", () => this.#leave());
    this.parts.text.after(form);
    return form;
  }
}
