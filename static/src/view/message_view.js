/**
 * One message on the page: its parts from a template, its actions, and, where there are several
 * versions of it, the way from one to the other. What a question and an answer have in common.
 */

import { icon, iconButton, showDone } from "./icon.js";
import { sure } from "./sure.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../wire/run.js").Run} Run
 * @typedef {"copy"|"edit"|"answer"|"remove"|"again"|"thrice"|"take"|"continue"} Action
 */

/**
 * @typedef {object} Actions
 * @property {(action: Action, message: Message) => Promise<boolean>|void} act where it takes a
 *   while, whether it was done
 * @property {(message: Message) => number} below how many are deleted with it, itself among them
 * @property {(message: Message, text: string) => void} ask an edited question
 * @property {(message: Message) => string|undefined} edited what is being written for a question
 * @property {(message: Message, text: string|null) => void} keepEdit null once that is over
 * @property {(message: Message) => void} switchTo a version
 */

/**
 * @typedef {object} Context
 * @property {Run|null} run the answer is alive
 * @property {Message[]} versions of the message, itself among them
 * @property {boolean} near it is in view, or soon will be
 * @property {boolean} last nothing follows it
 * @property {boolean} busy an answer of the chat is alive, or there is one to choose first
 */

export class MessageView {
  message;
  element;
  /** @type {Record<string, HTMLElement>} */
  parts = {};
  /** @type {Record<string, HTMLElement>} */
  buttons = {};
  #actions;
  #versions = "";

  /**
   * @param {string} template id
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(template, message, actions) {
    const source = /** @type {HTMLTemplateElement} */ (document.getElementById(template));
    const copy = /** @type {DocumentFragment} */ (source.content.cloneNode(true));
    this.message = message;
    this.element = /** @type {HTMLElement} */ (copy.firstElementChild);
    this.#actions = actions;
    for (const found of this.element.querySelectorAll("[data-part], [data-action]")) {
      const element = /** @type {HTMLElement} */ (found);
      const { part, action } = element.dataset;
      if (part) this.parts[part] = element;
      if (!action) continue;
      this.buttons[action] = element;
      if (action === "remove") sure(element, () => this.onAction(action), () => this.#deletion());
      else element.addEventListener("click", () => this.onAction(action));
    }
  }

  /** @param {string} action */
  onAction(action) {
    const doing = this.#actions.act(/** @type {Action} */ (action), this.message);
    void doing?.then((done) => done && showDone(this.buttons[action]));
  }

  /** It is shown no more, and another view is made when it is again. */
  gone() {}

  /** Draws the buttons. A long chat has thousands, and few of them ever come into view. */
  showIcons() {
    for (const button of Object.values(this.buttons)) {
      const { icon: name } = button.dataset;
      if (name && !button.firstChild) button.append(icon(name));
    }
  }

  /** @returns {string} what is asked before it is done */
  #deletion() {
    const count = this.#actions.below(this.message);
    return count > 1 ? `Delete this and ${count - 1} after it?` : "Delete?";
  }

  /** @param {Message[]} versions */
  showVersions(versions) {
    const at = versions.findIndex(({ id }) => id === this.message.id);
    const shown = `${versions.map(({ id }) => id).join()} ${at}`;
    if (shown === this.#versions) return;
    this.#versions = shown;
    this.parts.versions.hidden = versions.length < 2;
    this.parts.versions.replaceChildren(
      this.#step("i-before", "Version before", versions[at - 1]),
      ` ${at + 1} of ${versions.length} `,
      this.#step("i-after", "Version after", versions[at + 1]),
    );
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  set(name, text) {
    const part = this.parts[name];
    if (part && part.textContent !== text) part.textContent = text;
  }

  /**
   * @param {string} name of its picture
   * @param {string} label
   * @param {Message|undefined} version
   */
  #step(name, label, version) {
    const button = iconButton(name, label);
    button.disabled = version === undefined;
    if (version) button.addEventListener("click", () => this.#actions.switchTo(version));
    return button;
  }
}
