/** The answers on their way, whichever chats they belong to. */

import { Run } from "./run.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("./connection.js").Connection} Connection
 * @typedef {import("./run.js").Observer} Observer
 */

export class Runs {
  /** @type {Map<string, Run>} by message */
  #runs = new Map();
  #connection;
  #observer;

  /**
   * @param {Connection} connection
   * @param {Observer} observer of all of them
   */
  constructor(connection, observer) {
    this.#connection = connection;
    this.#observer = observer;
  }

  /**
   * @param {Message} message alive
   * @returns {Run} not asked for yet
   */
  start(message) {
    const run = new Run(message, this.#connection, {
      onNamed: this.#observer.onNamed,
      onProgress: this.#observer.onProgress,
      onEnd: () => {
        this.#runs.delete(message.id);
        this.#observer.onEnd(run);
      },
    });
    this.#runs.set(message.id, run);
    return run;
  }

  /** @param {string} messageId */
  get(messageId) {
    return this.#runs.get(messageId) ?? null;
  }

  /** @param {string} chatId */
  in(chatId) {
    return [...this.#runs.values()].filter(({ message }) => message.chatId === chatId);
  }
}
