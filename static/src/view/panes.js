/**
 * Which chats are open: one, or, where the page is wide enough, two beside each other. What the
 * reader does with keys, the list or the settings goes to the pane that had the focus last.
 */

import { by } from "./by.js";
import { Pane } from "./pane.js";

/**
 * @typedef {import("../chats.js").Chats} Chats
 * @typedef {import("../wire/connection.js").Connection} Connection
 */

/** Two columns are readable from here on; in narrower windows one stays. */
const WIDE = matchMedia("(min-width: 64rem)");
const BESIDE = "-beside";

/**
 * @typedef {object} On
 * @property {(words: string) => void} say for screen readers
 * @property {() => void} changed other chats are open, or the reader is at the other one
 */

export class Panes {
  /** @type {Pane[]} one or two */
  #open;
  /** @type {Pane} */
  #active;
  /** @type {Pane|null} the second, once it was wanted */
  #second = null;
  /** The chat that went as the window became narrow; it comes back with the room. */
  #folded = "";
  #spare = copyOf(by("pane"));
  #chats;
  #make;

  /**
   * @param {Chats} chats
   * @param {Connection} connection
   * @param {On} on
   */
  constructor(chats, connection, on) {
    this.#chats = chats;
    this.#make = (/** @type {typeof by} */ find) =>
      new Pane(find, chats, connection, {
        say: on.say,
        opened: () => on.changed(),
        entered: (pane) => {
          if (pane === this.#active) return;
          this.#enter(pane);
          on.changed();
        },
      });
    this.#active = this.#make(by);
    this.#open = [this.#active];
    WIDE.addEventListener("change", () => (WIDE.matches ? this.#unfold() : this.#fold()));
    by("pane-close").addEventListener("click", () => this.#leave(this.#open[0]));
  }

  /** @returns {Pane} where the reader is */
  get active() {
    return this.#active;
  }

  /** @returns {readonly Pane[]} */
  get all() {
    return this.#open;
  }

  /** @returns {Pane|undefined} the one where the reader is not */
  get other() {
    return this.#open.find((pane) => pane !== this.#active);
  }

  /** @returns {boolean} a second chat has room */
  get haveRoom() {
    return WIDE.matches;
  }

  /**
   * @param {string} chatId
   * @returns {Pane|undefined} where this chat is open
   */
  showing(chatId) {
    return this.#open.find((pane) => pane.chatId === chatId);
  }

  /**
   * Shows a chat where the reader is, or takes the reader to where it is open.
   * @param {string} chatId
   */
  async show(chatId) {
    const there = this.#wantedIn(chatId);
    if (there) this.#enter(there);
    await this.#active.show(chatId);
  }

  /**
   * Shows a chat beside the one where the reader is, and goes there.
   * @param {string} chatId
   */
  async showBeside(chatId) {
    if (!this.haveRoom || this.#wantedIn(chatId)) return this.show(chatId);
    if (this.#open.length === 1) {
      this.#second ??= this.#makeSecond();
      by("panes").append(this.#second.element);
      this.#open.push(this.#second);
      by("panes").toggleAttribute("data-both", true);
    }
    this.#enter(/** @type {Pane} */ (this.other));
    await this.#active.show(chatId);
  }

  /**
   * @param {string} chatId
   * @returns {Pane|undefined} where this chat is open, or is being opened
   */
  #wantedIn(chatId) {
    return this.#open.find(({ wanted }) => wanted === chatId);
  }

  #fold() {
    this.#folded = this.other?.chatId ?? "";
    this.close();
  }

  #unfold() {
    const chatId = this.#folded;
    this.#folded = "";
    if (!this.#chats.get(chatId) || this.other || this.#wantedIn(chatId)) return;
    const here = this.#active;
    void this.showBeside(chatId).then(() => here.composer.focus());
  }

  /** Leaves only the chat where the reader is. */
  close() {
    if (this.other) this.#leave(this.other);
  }

  /**
   * Leaves the chats that are no more, perhaps by another tab's doing.
   * @returns {boolean} no chat is open now
   */
  leaveGone() {
    const gone = this.#open.filter(({ chatId }) => chatId && !this.#chats.get(chatId));
    for (const pane of gone) pane.leave();
    if (gone.length > 0) this.#leave(gone.at(-1));
    return gone.length > 0 && this.#active.chatId === "";
  }

  /** @param {Pane|undefined} pane is left, and the other one stays */
  #leave(pane) {
    const [first, second] = this.#open;
    if (!first || !second || !pane) return;
    const { chatId } = pane === first ? second : first;
    second.leave();
    second.element.remove();
    this.#open = [first];
    by("panes").toggleAttribute("data-both", false);
    this.#enter(first);
    if (chatId) void first.show(chatId).then(() => first.composer.focus());
  }

  /** @param {Pane} pane */
  #enter(pane) {
    this.#active = pane;
    for (const one of this.#open) one.element.toggleAttribute("data-active", one === pane);
  }

  #makeSecond() {
    const pane = this.#make((id) => {
      const found = id === "pane" ? this.#spare : this.#spare.querySelector(`#${id}${BESIDE}`);
      if (!found) throw new Error(`the second pane has no element ${id}`);
      return /** @type {any} */ (found);
    });
    const close = this.#spare.querySelector(`#pane-close${BESIDE}`);
    close?.addEventListener("click", () => this.#leave(pane));
    return pane;
  }
}

/**
 * @param {HTMLElement} pane as the page has it from the start
 * @returns {HTMLElement} another one, with ids of its own, and without what the page has once
 */
function copyOf(pane) {
  const copy = /** @type {HTMLElement} */ (pane.cloneNode(true));
  for (const once of copy.querySelectorAll("[data-once]")) once.remove();
  for (const region of [copy, ...copy.querySelectorAll("section")]) region.ariaLabel += " beside";
  for (const name of ["id", "for", "aria-labelledby", "aria-describedby"]) {
    for (const element of [copy, ...copy.querySelectorAll(`[${name}]`)]) {
      const id = element.getAttribute(name);
      if (id) element.setAttribute(name, id + BESIDE);
    }
  }
  return copy;
}
