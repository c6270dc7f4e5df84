/**
 * Keeps what is being written: a growing message every half second, and at once where the page may
 * go. Nobody waits for it; that it does not work is told once each time.
 */

import { Journal, carryOut } from "./journal.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("./database.js").Database} Database
 */

const SAVE_EVERY_MS = 500;

export class Keeper {
  /** @type {Map<Message, number>} timers */
  #soon = new Map();
  #journal = new Journal();
  #database;
  #onFailed;

  /**
   * @param {Database|null} database
   * @param {() => void} onFailed
   */
  constructor(database, onFailed) {
    this.#database = database;
    this.#onFailed = onFailed;
    window.addEventListener("pagehide", () => this.#all());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "hidden") this.#all();
    });
  }

  /** @param {import("./journal.js").Entry} change */
  keep(change) {
    if (!this.#database) return this.#onFailed();
    const done = this.#journal.add(change);
    carryOut(change, this.#database).then(done, this.#onFailed);
  }

  /** @param {Message} message that goes on growing */
  soon(message) {
    if (this.#soon.has(message)) return;
    this.#soon.set(
      message,
      window.setTimeout(() => void this.now(message), SAVE_EVERY_MS),
    );
  }

  /**
   * @param {Message} message
   * @returns {Promise<void>} when the database has it, or never will
   */
  async now(message) {
    this.drop(message);
    if (this.#database) await this.#database.putMessage(message).catch(this.#onFailed);
    else this.#onFailed();
  }

  /** @param {Message} message that is not to be kept */
  drop(message) {
    clearTimeout(this.#soon.get(message));
    this.#soon.delete(message);
  }

  #all() {
    for (const message of [...this.#soon.keys()]) void this.now(message);
  }
}
