/**
 * A question. It enters as a text node, so nothing in it can become markup.
 */

import { MessageView } from "./message_view.js";

/**
 * @typedef {import("./message_view.js").Actions} Actions
 * @typedef {import("./message_view.js").Context} Context
 * @typedef {import("../model/chat.js").Message} Message
 */

export class QuestionView extends MessageView {
  #field;

  /**
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(message, actions) {
    super("question-template", message, actions);
    this.set("text", message.text);
    this.parts.text.hidden = message.text === "";
    this.parts.files.hidden = message.attachments.length === 0;
    for (const { name, text } of message.attachments) {
      const item = document.createElement("li");
      item.textContent = `${name}, ${text.length.toLocaleString("en")} characters`;
      item.dir = "auto";
      this.parts.files.append(item);
    }
    this.buttons.copy.hidden = !navigator.clipboard; // only secure contexts have one
    const form = /** @type {HTMLFormElement} */ (this.parts.editing);
    this.#field = /** @type {HTMLTextAreaElement} */ (form.querySelector("textarea"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      if (text === "" && message.attachments.length === 0) return;
      this.#edit(false);
      actions.ask(this.message, text);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#edit(false);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
  }

  /**
   * @param {string} action
   * @override
   */
  onAction(action) {
    if (action === "edit") this.#edit(true);
    else if (action === "leave") this.#edit(false);
    else super.onAction(action);
  }

  /** @param {Context} context */
  update({ versions }) {
    this.showVersions(versions);
  }

  /** @param {boolean} open */
  #edit(open) {
    this.element.toggleAttribute("data-editing", open);
    this.parts.editing.hidden = !open;
    this.parts.text.hidden = open || this.message.text === "";
    if (!open) return this.buttons.edit.focus();
    this.#field.value = this.message.text;
    this.#field.focus();
  }
}
