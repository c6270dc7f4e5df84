/**
 * One question and its answer on the page. All text enters as text nodes, so nothing a model or a
 * server says can become markup.
 */

import { isAlive } from "./chat.js";
import { endWords, faultWords, liveWords, statsTitle, statsWords } from "./words.js";

/**
 * @typedef {import("./chat.js").Turn} Turn
 * @typedef {import("./meter.js").Meter} Meter
 * @typedef {"copy"|"again"|"edit"|"forget"} Action
 */

const METER_EVERY_MS = 250;
const MOST_DOTS = 8;

export class TurnView {
  #turn;
  #text = document.createTextNode("");
  #shown = "";
  #meterAt = 0;
  #dots = 0;
  /** @type {Record<string, HTMLElement>} */
  #parts = {};
  /** @type {Record<string, HTMLElement>} */
  #actions = {};
  element;

  /**
   * @param {Turn} turn
   * @param {(action: Action, turn: Turn) => void} onAction
   */
  constructor(turn, onAction) {
    const template = /** @type {HTMLTemplateElement} */ (document.getElementById("turn-template"));
    const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
    this.#turn = turn;
    this.element = /** @type {HTMLElement} */ (copy.firstElementChild);
    for (const part of this.element.querySelectorAll("[data-part], [data-action]")) {
      const element = /** @type {HTMLElement} */ (part);
      const { part: name, action } = element.dataset;
      if (name) this.#parts[name] = element;
      if (action) {
        this.#actions[action] = element;
        element.addEventListener("click", () => onAction(/** @type {Action} */ (action), turn));
      }
    }
    this.#parts.user.textContent = turn.user;
    this.#parts.answer.append(this.#text);
  }

  /**
   * Shows the turn as it is now. Cheap enough for every animation frame: new text is appended to
   * one text node, and figures move at a readable pace.
   * @param {Meter|null} meter
   * @param {{last: boolean, stopping: boolean, now: number}} context
   */
  update(meter, { last, stopping, now }) {
    const turn = this.#turn;
    const alive = isAlive(turn);
    this.#updateText();
    if (alive) {
      this.#set("note", stopping && turn.status === "streaming" ? "Stopping" : "");
      this.#set("wait-text", stopping ? "Stopping" : "Waiting for the answer");
      if (meter && now - this.#meterAt >= METER_EVERY_MS) this.#updateMeter(meter, now);
    }
    if (alive && this.element.dataset.status === turn.status) return;
    this.element.dataset.status = turn.status;
    this.element.dataset.last = `${last}`;
    this.#parts.answer.setAttribute("aria-busy", `${alive}`);
    this.#parts.wait.hidden = turn.status !== "waiting";
    this.#updateFault();
    if (alive) this.#resetFigures(turn.status);
    else this.#showEnd();
    this.#updateActions(last && !alive);
  }

  #updateText() {
    const { answer } = this.#turn;
    if (answer === this.#shown) return;
    if (answer.startsWith(this.#shown)) this.#text.appendData(answer.slice(this.#shown.length));
    else this.#text.data = answer;
    this.#shown = answer;
  }

  /**
   * @param {Meter} meter
   * @param {number} now
   */
  #updateMeter(meter, now) {
    this.#meterAt = now;
    this.#set("stats", liveWords(meter.tokensPerSecond, meter.batchSize));
    this.#updateDots(meter.batchSize);
  }

  /** @param {string} status */
  #resetFigures(status) {
    if (status !== "waiting") return;
    this.#meterAt = 0;
    this.#set("stats", "");
    this.#updateDots(0);
  }

  #showEnd() {
    const { stats } = this.#turn;
    this.#set("note", endWords(this.#turn));
    this.#set("stats", stats ? statsWords(stats) : "");
    this.#parts.stats.title = stats ? statsTitle(stats) : "";
    this.#updateDots(Math.round(stats?.batchSize ?? 0));
  }

  #updateFault() {
    const fault = faultWords(this.#turn);
    this.#parts.fault.hidden = fault === null;
    this.#set("fault-text", fault?.headline ?? "");
    this.#set("fault-detail", fault?.detail ?? "");
  }

  /** @param {boolean} offered actions that change the chat are for its last turn only */
  #updateActions(offered) {
    const { answer, status, fault } = this.#turn;
    const alive = isAlive(this.#turn);
    // Only secure contexts have a clipboard.
    this.#actions.copy.hidden = alive || answer === "" || !navigator.clipboard;
    this.#actions.again.hidden = !offered;
    this.#actions.edit.hidden = !offered || answer !== "";
    this.#actions.forget.hidden =
      !offered || status !== "failed" || fault?.code !== "context_length_exceeded";
  }

  /** @param {number} count one dot for each answer in the batch, the first of them this one */
  #updateDots(count) {
    if (count === this.#dots) return;
    this.#dots = count;
    const dots = Array.from({ length: Math.min(count, MOST_DOTS) }, () =>
      document.createElement("i"),
    );
    this.#parts.dots.replaceChildren(...dots);
    if (count > MOST_DOTS) this.#parts.dots.append(`+${count - MOST_DOTS}`);
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  #set(name, text) {
    const part = this.#parts[name];
    if (part.textContent !== text) part.textContent = text;
  }
}
