/**
 * Answers side by side, from which the reader takes one. They are the same views that stand alone
 * before and after: only what makes them columns comes and goes.
 */

import { putAt } from "./put_at.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("./message_view.js").MessageView} MessageView
 */

export class CandidatesView {
  element = document.createElement("li");
  #row = document.createElement("ol");
  /** @type {Map<MessageView, HTMLElement>} what is below each column */
  #choices = new Map();
  #take;

  /** @param {(candidate: Message) => void} take */
  constructor(take) {
    this.#take = take;
    this.element.className = "candidates";
    this.#row.setAttribute("aria-label", "Candidates");
    this.element.append(this.#row);
  }

  /** @param {MessageView} view */
  has(view) {
    return this.#choices.has(view);
  }

  /**
   * @param {MessageView[]} views from the first column to the last; none once one is taken
   * @param {Message|undefined} current the one from which the chat goes on
   */
  show(views, current) {
    for (const view of this.#choices.keys()) if (!views.includes(view)) this.#leave(view);
    for (const [at, view] of views.entries()) {
      const choice = this.#choices.get(view) ?? this.#enter(view);
      putAt(this.#row, at, view.element);
      const isCurrent = view.message === current;
      const name = `Candidate ${at + 1}`;
      view.set("heading", name);
      view.element.toggleAttribute("data-current", isCurrent);
      const [title, note, button] = choice.querySelectorAll("span, button");
      if (title) title.textContent = name;
      if (note) note.textContent = isCurrent ? "The chat goes on here" : "";
      button?.setAttribute("aria-label", `Take this one, candidate ${at + 1}`);
    }
  }

  /** @param {MessageView} view */
  #enter(view) {
    const template = /** @type {HTMLTemplateElement} */ (document.getElementById("choice-template"));
    const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
    const choice = /** @type {HTMLElement} */ (copy.firstElementChild);
    choice.querySelector("button")?.addEventListener("click", () => this.#take(view.message));
    view.element.append(choice);
    this.#choices.set(view, choice);
    return choice;
  }

  /** @param {MessageView} view */
  #leave(view) {
    this.#choices.get(view)?.remove();
    this.#choices.delete(view);
    view.set("heading", "Answer");
    view.element.removeAttribute("data-current");
  }
}
