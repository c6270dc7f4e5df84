/**
 * Chats kept in this browser: IndexedDB, with the messages of each chat apart from it, so that a
 * list of a thousand chats is read without their texts. Other tabs are told of every change.
 */

import { openDB } from "idb";

/**
 * @typedef {import("../model/chat.js").Attachment} Attachment
 * @typedef {import("../model/chat.js").Chat} Chat
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../model/chat.js").Tree} Tree
 */

/**
 * @typedef {{kind: "chat", chatId: string, removed?: string[]} | {kind: "message", chatId: string, messageId: string}
 *   | {kind: "everything"}} Change
 */

/**
 * @typedef {object} Schema
 * @property {{key: string, value: Chat}} chats
 * @property {{key: string, value: Message, indexes: {chat: string, status: string}}} messages
 * @property {{key: string, value: Attachment[]}} files by chat, those that were not sent yet
 */

const NAME = "ds4trio";
const VERSION = 2;
/** A browser whose files are damaged, or in use elsewhere, may neither open them nor refuse to. */
const PATIENCE_MS = 10_000;

export class Database {
  #database;
  #channel = "BroadcastChannel" in window ? new BroadcastChannel(NAME) : null;

  /** @param {import("idb").IDBPDatabase<Schema>} database */
  constructor(database) {
    this.#database = database;
    // Another tab with a newer page wants to change the form of the data.
    database.addEventListener("versionchange", () => database.close());
  }

  /**
   * @returns {Promise<Database>}
   * @throws {DOMException} where the browser keeps nothing, as some private modes do, or does not say
   */
  static async open() {
    /** @type {Promise<import("idb").IDBPDatabase<Schema>>} */
    const opening = openDB(NAME, VERSION, {
      upgrade(created, had) {
        if (had < 2) created.createObjectStore("files");
        if (had > 0) return;
        created.createObjectStore("chats", { keyPath: "id" });
        const messages = created.createObjectStore("messages", { keyPath: "id" });
        messages.createIndex("chat", "chatId");
        messages.createIndex("status", "status");
      },
    });
    let timer = 0;
    const late = new Promise((_, reject) => {
      timer = window.setTimeout(() => {
        reject(new DOMException("It does not open.", "TimeoutError"));
        void opening.then((database) => database.close()).catch(() => {}); // when it does after all
      }, PATIENCE_MS);
    });
    try {
      return new Database(await Promise.race([opening, late]));
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {(change: Change) => void} listener is told what other tabs did */
  onChange(listener) {
    this.#channel?.addEventListener("message", (event) => listener(event.data));
  }

  /** @returns {Promise<Chat[]>} */
  chats() {
    return this.#database.getAll("chats");
  }

  /**
   * @param {string} chatId
   * @returns {Promise<Tree>}
   */
  async messages(chatId) {
    const found = await this.#database.getAllFromIndex("messages", "chat", chatId);
    return new Map(found.map((message) => [message.id, message]));
  }

  /**
   * @param {string} messageId
   * @returns {Promise<Message|undefined>}
   */
  message(messageId) {
    return this.#database.get("messages", messageId);
  }

  /**
   * @param {readonly import("../model/chat.js").Status[]} statuses
   * @returns {Promise<Set<string>>} ids of the chats with messages that have one of these
   */
  async chatsWith(statuses) {
    const found = await Promise.all(
      statuses.map((status) => this.#database.getAllFromIndex("messages", "status", status)),
    );
    return new Set(found.flat().map(({ chatId }) => chatId));
  }

  /** @returns {Promise<Message[]>} */
  allMessages() {
    return this.#database.getAll("messages");
  }

  /**
   * @param {string} chatId
   * @returns {Promise<Attachment[]|undefined>}
   */
  files(chatId) {
    return this.#database.get("files", chatId);
  }

  /**
   * @param {string} chatId
   * @param {Attachment[]} files
   */
  async putFiles(chatId, files) {
    if (files.length > 0) await this.#database.put("files", files, chatId);
    else await this.#database.delete("files", chatId);
  }

  /** @param {Chat} chat */
  async putChat(chat) {
    await this.#database.put("chats", chat);
    this.#tell({ kind: "chat", chatId: chat.id });
  }

  /** @param {Message} message */
  async putMessage(message) {
    await this.#database.put("messages", message);
    this.#tell({ kind: "message", chatId: message.chatId, messageId: message.id });
  }

  /**
   * Writes a chat and messages of it together, or nothing.
   * @param {Chat} chat
   * @param {Message[]} messages
   */
  async put(chat, messages) {
    await this.#write([chat], messages);
    this.#tell({ kind: "chat", chatId: chat.id });
  }

  /**
   * The same of several chats.
   * @param {Chat[]} chats
   * @param {Message[]} messages
   */
  async putAll(chats, messages) {
    await this.#write(chats, messages);
    this.#tell({ kind: "everything" });
  }

  /**
   * @param {Chat[]} chats
   * @param {Message[]} messages
   */
  async #write(chats, messages) {
    const transaction = this.#database.transaction(["chats", "messages"], "readwrite");
    const writes = [
      ...chats.map((chat) => transaction.objectStore("chats").put(chat)),
      ...messages.map((message) => transaction.objectStore("messages").put(message)),
    ];
    await Promise.all([...writes, transaction.done]);
  }

  /**
   * @param {string} chatId
   * @param {string[]} messageIds some of its messages
   */
  async removeMessages(chatId, messageIds) {
    const transaction = this.#database.transaction("messages", "readwrite");
    await Promise.all([...messageIds.map((id) => transaction.store.delete(id)), transaction.done]);
    this.#tell({ kind: "chat", chatId, removed: messageIds });
  }

  /** @param {string} chatId */
  async removeChat(chatId) {
    // On its own and at once: it must hold even if the page goes in the next moment.
    await this.#database.delete("chats", chatId);
    this.#tell({ kind: "chat", chatId });
    await this.#database.delete("files", chatId);
    await this.#removeMessagesOf(chatId);
  }

  /** Removes messages of chats that are not there, which a page that went too soon has left. */
  async tidy() {
    const transaction = this.#database.transaction(["chats", "messages"]);
    const chats = new Set(await transaction.objectStore("chats").getAllKeys());
    const index = transaction.objectStore("messages").index("chat");
    const orphans = [];
    let cursor = await index.openKeyCursor(null, "nextunique");
    for (; cursor; cursor = await cursor.continue()) {
      if (!chats.has(cursor.key)) orphans.push(`${cursor.key}`);
    }
    for (const chatId of orphans) await this.#removeMessagesOf(chatId);
  }

  /** @param {string} chatId */
  async #removeMessagesOf(chatId) {
    const transaction = this.#database.transaction("messages", "readwrite");
    const keys = await transaction.store.index("chat").getAllKeys(chatId);
    await Promise.all([...keys.map((key) => transaction.store.delete(key)), transaction.done]);
  }

  /** @param {Change} change */
  #tell(change) {
    this.#channel?.postMessage(change);
  }
}
