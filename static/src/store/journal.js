/**
 * Changes on their way into the database. A page that is reloaded in the same moment takes its open
 * transactions with it; what stands here is written again by the page that comes next.
 */

import { isAlive } from "../model/chat.js";

/**
 * @typedef {import("../model/chat.js").Chat} Chat
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("./database.js").Database} Database
 */

/**
 * @typedef {{kind: "put", chat: Chat, messages: Message[]}
 *   | {kind: "removeChat", chatId: string}
 *   | {kind: "removeMessages", chatId: string, ids: string[]}} Entry
 */

const KEY = "ds4trio.journal";

export class Journal {
  /** @type {Map<number, Entry>} */
  #open = new Map();
  #number = 0;

  /**
   * @param {Entry} entry
   * @returns {() => void} to be called when the database has it
   */
  add(entry) {
    const number = ++this.#number;
    this.#open.set(number, entry);
    this.#write();
    return () => {
      this.#open.delete(number);
      this.#write();
    };
  }

  #write() {
    try {
      if (this.#open.size === 0) sessionStorage.removeItem(KEY);
      else sessionStorage.setItem(KEY, JSON.stringify([...this.#open.values()]));
    } catch {
      return; // no storage, or no room in it: the database alone has to do
    }
  }
}

/**
 * Carries out what the page before this one could not.
 * @param {Database} database
 */
export async function replay(database) {
  for (const entry of left()) await carryOut(await current(entry, database), database);
}

/**
 * @param {Entry} entry
 * @param {Database} database
 * @returns {Promise<Entry>} less the messages of which the database has more: they went on growing
 */
async function current(entry, database) {
  if (entry.kind !== "put") return entry;
  const messages = [];
  for (const message of entry.messages) {
    const kept = await database.message(message.id);
    const isOlder = kept && (!isAlive(kept) || kept.sequence > message.sequence);
    if (!isOlder) messages.push(message);
  }
  return { ...entry, messages };
}

/**
 * @param {Entry} entry
 * @param {Database} database
 * @returns {Promise<void>}
 */
export function carryOut(entry, database) {
  switch (entry.kind) {
    case "put":
      return database.put(entry.chat, entry.messages);
    case "removeChat":
      return database.removeChat(entry.chatId);
    case "removeMessages":
      return database.removeMessages(entry.chatId, entry.ids);
  }
}

/** @returns {Entry[]} */
function left() {
  try {
    const text = sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    return text === null ? [] : JSON.parse(text);
  } catch {
    return [];
  }
}
