/**
 * Takes in what other tabs of this browser do to the chats. While it reads, this tab goes on: what
 * is newer here than what was read stays.
 */

import { isAlive, mend, newestLeafBelow } from "./model/chat.js";

/**
 * @typedef {import("./model/chat.js").Chat} Chat
 * @typedef {import("./model/chat.js").Message} Message
 * @typedef {import("./model/chat.js").Tree} Tree
 * @typedef {import("./store/database.js").Change} Change
 * @typedef {import("./store/database.js").Database} Database
 */

/**
 * @typedef {object} Here what this tab has, and does about it
 * @property {Map<string, Chat>} chats
 * @property {Map<string, Tree>} trees of the chats that were opened
 * @property {(messageId: string) => boolean} isOurs this tab writes the message
 * @property {(chatId: string, messageIds: string[]) => void} removed messages of a chat
 * @property {(chatId: string) => void} gone the chat is no more
 * @property {(chatId: string) => void} grown something was added to what is shown of it
 * @property {(chatId: string) => void} changed its messages are others
 * @property {() => void} listed chats came, went, or changed
 */

export class OtherTabs {
  /** @type {Set<string>} chats that were changed here since the last reading began */
  #touched = new Set();
  /** One change is taken in after another. */
  #taking = Promise.resolve();
  /** How many changes this tab was told of. */
  told = 0;
  #database;
  #here;

  /**
   * @param {Database} database
   * @param {Here} here
   */
  constructor(database, here) {
    this.#database = database;
    this.#here = here;
    database.onChange((change) => {
      this.told += 1;
      this.#taking = this.#taking.then(() => this.#take(change)).catch(reportError);
    });
  }

  /** @param {string} chatId was changed here just now */
  touched(chatId) {
    this.#touched.add(chatId);
  }

  /** @param {string} chatId of which this tab may have read less than there is now */
  async readMore(chatId) {
    const end = this.#endOf(chatId);
    if (await this.#readMessages(chatId)) this.#showChanged(chatId, end);
  }

  /** @param {Change} change */
  async #take(change) {
    const here = this.#here;
    if (change.kind === "message") {
      if (await this.#readMessage(change.chatId, change.messageId)) this.#showChanged(change.chatId);
      return;
    }
    const end = change.kind === "chat" ? this.#endOf(change.chatId) : undefined;
    // What this tab wrote may have been kept once more before it was told.
    if (change.kind === "chat") here.removed(change.chatId, change.removed ?? []);
    await this.#readChats();
    if (change.kind === "chat") {
      const wasRead = await this.#readMessages(change.chatId);
      if (!here.chats.has(change.chatId)) here.gone(change.chatId);
      if (wasRead) this.#showChanged(change.chatId, end);
    }
    here.listed();
  }

  /**
   * @param {string} chatId
   * @param {Message} [end] what it showed last, if nothing followed it
   */
  #showChanged(chatId, end) {
    const { chats, trees, changed } = this.#here;
    const chat = chats.get(chatId);
    if (chat) mend(chat, trees.get(chatId) ?? new Map());
    if (end) this.#goOnFrom(end);
    changed(chatId);
  }

  /**
   * @param {string} chatId
   * @returns {Message|undefined} the message that a chat shows last, if nothing follows it
   */
  #endOf(chatId) {
    const { chats, trees } = this.#here;
    const tree = trees.get(chatId);
    const end = tree?.get(chats.get(chatId)?.leaf ?? "");
    return tree && end && newestLeafBelow(tree, end.id) === end.id ? end : undefined;
  }

  /**
   * What another tab has added to the end of a chat is shown here, too. A reader who looks at an
   * earlier place, or at another branch, stays there.
   * @param {Message} end
   */
  #goOnFrom(end) {
    const { chats, trees, grown } = this.#here;
    const chat = chats.get(end.chatId);
    const tree = trees.get(end.chatId);
    if (!tree || chat?.leaf !== end.id) return;
    chat.leaf = newestLeafBelow(tree, end.id);
    if (chat.leaf !== end.id) grown(end.chatId);
  }

  async #readChats() {
    const { chats, trees } = this.#here;
    this.#touched.clear();
    const found = await this.#database.chats();
    const known = new Set(found.map(({ id }) => id));
    for (const chat of found) {
      if (this.#touched.has(chat.id)) continue;
      const own = chats.get(chat.id);
      // Each tab has its own place in a chat that it has opened.
      if (own) Object.assign(own, chat, trees.has(chat.id) ? { leaf: own.leaf } : {});
      else chats.set(chat.id, chat);
    }
    for (const { id, draft } of [...chats.values()]) {
      const isNew = trees.get(id)?.size === 0 && draft === "";
      if (known.has(id) || this.#touched.has(id) || isNew) continue;
      chats.delete(id);
      trees.delete(id);
    }
  }

  /**
   * @param {string} chatId
   * @returns {Promise<boolean>} whether they were wanted
   */
  async #readMessages(chatId) {
    const { trees, isOurs } = this.#here;
    const tree = trees.get(chatId);
    if (!tree) return false;
    const had = new Set(tree.keys());
    const messages = await this.#database.messages(chatId);
    for (const id of had) if (!messages.has(id) && !isOurs(id)) tree.delete(id);
    for (const message of messages.values()) {
      const isGone = had.has(message.id) && !tree.has(message.id);
      if (!isGone && !isOurs(message.id)) renew(tree, message);
    }
    return true;
  }

  /**
   * @param {string} chatId
   * @param {string} messageId
   * @returns {Promise<boolean>} whether it is there
   */
  async #readMessage(chatId, messageId) {
    const { trees, isOurs } = this.#here;
    const tree = trees.get(chatId);
    if (!tree || isOurs(messageId)) return false;
    const message = await this.#database.message(messageId);
    if (message && !isOurs(message.id)) renew(tree, message);
    return message !== undefined;
  }
}

/**
 * @param {Tree} tree
 * @param {Message} message as it was read; views hold the one that was
 */
function renew(tree, message) {
  const old = tree.get(message.id);
  if (old && !isAlive(old) && isAlive(message)) return; // what has ended meanwhile stays so
  if (old) Object.assign(old, message);
  else tree.set(message.id, message);
}
