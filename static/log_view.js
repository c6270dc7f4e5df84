/**
 * The conversation's scrolling list: keeps one view per turn, draws at most once a frame, and
 * follows the newest text only while the reader is at the bottom.
 */

import { isAlive } from "./chat.js";
import { TurnView } from "./turn_view.js";

/**
 * @typedef {import("./chat.js").Turn} Turn
 * @typedef {import("./meter.js").Meter} Meter
 * @typedef {import("./conversation.js").Conversation} Conversation
 */

/** Closer to the end than this (pixels) counts as being at the bottom. */
const AT_BOTTOM = 24;

export class LogView {
  /** @type {Map<Turn, TurnView>} */
  #views = new Map();
  /** @type {Map<Turn, Meter|null>} to draw in the next frame */
  #changed = new Map();
  #frame = 0;
  #follows = true;
  #scrollTop = 0;
  #conversation;
  #onAction;
  #log;
  #list;
  #latest;

  /**
   * @param {{log: HTMLElement, list: HTMLElement, latest: HTMLElement}} elements
   * @param {Conversation} conversation
   * @param {(action: import("./turn_view.js").Action, turn: Turn) => void} onAction
   */
  constructor({ log, list, latest }, conversation, onAction) {
    this.#log = log;
    this.#list = list;
    this.#latest = latest;
    this.#conversation = conversation;
    this.#onAction = onAction;
    log.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    latest.addEventListener("click", () => {
      this.follow();
      log.focus();
    });
    new ResizeObserver(() => this.#follows && this.#toBottom()).observe(log);
  }

  /** Makes the list match the chat. */
  showChat() {
    const { turns, readFrom } = this.#conversation.chat;
    const kept = new Set(turns);
    for (const [turn, view] of this.#views) {
      if (kept.has(turn)) continue;
      view.element.remove();
      this.#views.delete(turn);
      this.#changed.delete(turn);
    }
    for (const turn of turns) {
      const view = this.#views.get(turn) ?? new TurnView(turn, this.#onAction);
      if (!this.#views.has(turn)) {
        this.#views.set(turn, view);
        this.#list.append(view.element);
      }
      const isBorder = turn.id === readFrom && turn !== turns[0];
      view.element.toggleAttribute("data-read-from", isBorder);
      this.#update(turn, null);
    }
    this.follow();
  }

  /**
   * Draws a changed turn in the next frame, however often it changes until then. Its end is drawn
   * at once, since a page in the background has no frames.
   * @param {Turn} turn
   * @param {Meter|null} meter
   */
  turnChanged(turn, meter) {
    this.#changed.set(turn, meter);
    if (!isAlive(turn)) return this.#draw();
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  /** Goes to the newest text and stays with it. */
  follow() {
    this.#follows = true;
    this.#toBottom();
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    for (const [turn, meter] of this.#changed) this.#update(turn, meter);
    this.#changed.clear();
    if (this.#follows) this.#toBottom();
    else this.#latest.hidden = false;
  }

  /**
   * @param {Turn} turn
   * @param {Meter|null} meter
   */
  #update(turn, meter) {
    const last = turn === this.#conversation.chat.turns.at(-1);
    const { stopping } = this.#conversation;
    this.#views.get(turn)?.update(meter, { last, stopping, now: performance.now() });
  }

  #toBottom() {
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#scrollTop = this.#log.scrollTop;
    this.#latest.hidden = true;
  }

  /** Upwards is the reader's doing, since the page itself only ever scrolls down. */
  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    const left = scrollHeight - clientHeight - scrollTop;
    if (left <= 1) this.#follows = true;
    else if (scrollTop < this.#scrollTop) this.#follows = false;
    else if (left < AT_BOTTOM) this.#follows = true;
    this.#scrollTop = scrollTop;
    this.#latest.hidden = this.#follows || left < AT_BOTTOM;
  }
}
