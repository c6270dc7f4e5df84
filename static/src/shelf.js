/**
 * The chats of this browser: read from the database, changed, and kept there, together with other
 * tabs that do the same. Of how answers come into them it knows nothing.
 */

import {
  ALIVE,
  candidatesIn,
  mend,
  newChat,
  pathTo,
  versionsIn,
} from "./model/chat.js";
import { Keeper } from "./store/keeper.js";
import { replay } from "./store/journal.js";
import { search } from "./store/search.js";
import { OtherTabs } from "./tabs.js";

/**
 * @typedef {import("./model/chat.js").Attachment} Attachment
 * @typedef {import("./model/chat.js").Chat} Chat
 * @typedef {import("./model/chat.js").Message} Message
 * @typedef {import("./model/chat.js").Settings} Settings
 * @typedef {import("./model/chat.js").Tree} Tree
 * @typedef {import("./store/database.js").Database} Database
 */

/**
 * @typedef {object} Observer
 * @property {() => void} onList chats came, went, or changed their titles
 * @property {(chatId: string) => void} onChat the messages that a chat shows are others
 * @property {(message: Message) => void} onMessage one message changed
 * @property {() => void} onSaveFailed
 */

export class Shelf {
  /** @type {Map<string, Chat>} */
  #chats = new Map();
  /** @type {Map<string, Tree>} of the chats that were opened */
  #trees = new Map();
  /** @type {Map<string, Attachment[]>} files that wait in the composer, of the chats that were opened */
  #files = new Map();
  /** @type {OtherTabs|null} */
  #others = null;
  #database;
  keeper;
  observer;

  /**
   * @param {Database|null} database null where the browser keeps nothing
   * @param {Observer} observer
   */
  constructor(database, observer) {
    this.#database = database;
    this.observer = observer;
    this.keeper = new Keeper(database, () => observer.onSaveFailed());
    if (!database) return;
    this.#others = new OtherTabs(database, {
      chats: this.#chats,
      trees: this.#trees,
      isOurs: (messageId) => this.isWritten(messageId),
      removed: (chatId, messageIds) => this.removeFrom(chatId, messageIds),
      gone: (chatId) => this.onGone(chatId),
      grown: (chatId) => this.onGrown(chatId),
      changed: (chatId) => observer.onChat(chatId),
      listed: () => observer.onList(),
    });
  }

  /**
   * Reads what there is, and opens the chats in which an answer was being written.
   * @throws {DOMException} where the browser cannot read all of it
   */
  async load() {
    if (this.#database) await replay(this.#database).catch(() => {});
    const chats = (await this.#database?.chats()) ?? [];
    for (const chat of chats) this.#chats.set(chat.id, chat);
    for (const chatId of (await this.#database?.chatsWith(ALIVE)) ?? []) await this.open(chatId);
    this.observer.onList();
    void this.#database?.tidy().catch(() => {});
  }

  /** @returns {Chat[]} pinned ones first, then the latest */
  get list() {
    return [...this.#chats.values()].sort(
      (a, b) => Number(b.pinned) - Number(a.pinned) || b.updatedAt - a.updatedAt,
    );
  }

  /** @param {string} chatId */
  get(chatId) {
    return this.#chats.get(chatId);
  }

  /**
   * Has the messages of a chat ready.
   * @param {string} chatId
   * @returns {Promise<Message[]>} those that were not there before
   */
  async open(chatId) {
    if (this.#trees.has(chatId) || !this.#chats.has(chatId)) return [];
    const told = this.#others?.told;
    const tree = (await this.#database?.messages(chatId)) ?? new Map();
    const files = (await this.#database?.files(chatId)) ?? [];
    if (this.#trees.has(chatId) || !this.#chats.has(chatId)) return [];
    this.#trees.set(chatId, tree);
    this.#files.set(chatId, files);
    const chat = this.#chats.get(chatId);
    if (chat) mend(chat, tree);
    if (told !== this.#others?.told) await this.#others?.readMore(chatId);
    this.observer.onChat(chatId);
    return [...tree.values()];
  }

  /**
   * @param {string} chatId
   * @returns {Message[]} those that are shown, first to last
   */
  path(chatId) {
    const chat = this.#chats.get(chatId);
    return chat ? pathTo(this.tree(chatId), chat.leaf) : [];
  }

  /**
   * @param {string} chatId
   * @returns {Message[]} those to choose from, side by side at the end of what is shown
   */
  candidates(chatId) {
    const chat = this.#chats.get(chatId);
    return chat ? candidatesIn(this.tree(chatId), chat) : [];
  }

  /** @param {string} chatId */
  versionsIn(chatId) {
    return versionsIn(this.tree(chatId));
  }

  /**
   * @param {Settings} [settings]
   * @returns {Chat} an empty one; it is kept once it has a message or a draft
   */
  create(settings) {
    const chat = newChat(Date.now(), settings);
    this.#chats.set(chat.id, chat);
    this.#trees.set(chat.id, new Map());
    this.observer.onList();
    return chat;
  }

  /**
   * @param {string} chatId
   * @param {Partial<Pick<Chat, "title"|"named"|"pinned"|"draft"|"files"|"edits"|"settings">>} fields
   */
  change(chatId, fields) {
    const chat = this.#chats.get(chatId);
    if (!chat) return;
    Object.assign(chat, fields);
    this.#put(chat, []);
    this.observer.onList();
  }

  /**
   * Adds chats from elsewhere.
   * @param {{chats: Chat[], messages: Message[]}} found
   */
  async take({ chats, messages }) {
    const own = Map.groupBy(messages, ({ chatId }) => chatId);
    const tree = (/** @type {string} */ id) => new Map(own.get(id)?.map((one) => [one.id, one]));
    const trees = new Map(chats.map(({ id }) => [id, tree(id)]));
    for (const chat of chats) mend(chat, trees.get(chat.id) ?? new Map());
    await this.#database?.putAll(chats, messages);
    for (const chat of chats) {
      this.#others?.touched(chat.id);
      this.#chats.set(chat.id, chat);
    }
    for (const [chatId, tree] of trees) this.#trees.set(chatId, tree);
    this.observer.onList();
  }

  /** @param {string} chatId */
  remove(chatId) {
    this.#chats.delete(chatId);
    this.#trees.delete(chatId);
    this.#files.delete(chatId);
    this.#others?.touched(chatId);
    this.keeper.keep({ kind: "removeChat", chatId });
    this.observer.onList();
  }

  /**
   * @param {string} query
   * @returns {Promise<Map<string, import("./store/search.js").Found>>} by id, the chats that have
   *   these words in their title or text
   */
  async search(query) {
    const messages = await this.messages().catch(() => []); // titles are there all the same
    return search(this.list, messages, query);
  }

  /** @returns {Promise<Message[]>} of all chats */
  async messages() {
    if (this.#database) return this.#database.allMessages();
    return [...this.#trees.values()].flatMap((tree) => [...tree.values()]);
  }

  /**
   * @param {string} chatId
   * @returns {Tree} its messages, to be changed; an empty one where the chat is not open
   */
  tree(chatId) {
    return this.#trees.get(chatId) ?? new Map();
  }

  /**
   * Shows another path of a chat, and keeps it with the messages that are new.
   * @param {Chat} chat
   * @param {string|null} leaf
   * @param {Message[]} [made]
   */
  show(chat, leaf, made = []) {
    chat.leaf = leaf;
    chat.updatedAt = Date.now();
    this.#put(chat, made);
    this.observer.onChat(chat.id);
    this.observer.onList();
  }

  /**
   * @param {string} chatId
   * @returns {Attachment[]} files that wait in its composer; none where the chat is not open
   */
  files(chatId) {
    return this.#files.get(chatId) ?? [];
  }

  /**
   * Keeps them, and with them a chat that has nothing else.
   * @param {string} chatId
   * @param {Attachment[]} files
   */
  keepFiles(chatId, files) {
    this.#files.set(chatId, files);
    this.change(chatId, { files: files.length });
    this.#database?.putFiles(chatId, files).catch(() => this.observer.onSaveFailed());
  }

  /**
   * @param {Message} question
   * @returns {string|undefined} other words for it that are being written
   */
  edited({ chatId, id }) {
    return this.#chats.get(chatId)?.edits?.[id];
  }

  /**
   * @param {Message} question
   * @param {string|null} text null once it was asked or left
   */
  keepEdit({ chatId, id }, text) {
    if (!this.tree(chatId).has(id)) return;
    const { [id]: before, ...others } = this.#chats.get(chatId)?.edits ?? {};
    if ((before ?? null) === text) return;
    this.change(chatId, { edits: text === null ? others : { ...others, [id]: text } });
  }

  /**
   * @param {string} chatId
   * @param {string[]} ids of messages
   */
  removeFrom(chatId, ids) {
    const tree = this.tree(chatId);
    const gone = ids.map((id) => tree.get(id)).filter((message) => message !== undefined);
    for (const { id } of gone) tree.delete(id);
    for (const message of gone) this.onRemoved(message);
    if (gone.length > 0) this.keeper.keep({ kind: "removeMessages", chatId, ids });
  }

  /** @param {Message} message becomes what the database has, where that is more */
  async readAgain(message) {
    const kept = await this.#database?.message(message.id);
    if (kept) Object.assign(message, kept);
  }

  /** @param {string} _chatId another tab has removed it */
  onGone(_chatId) {}

  /** @param {string} _chatId another tab has added to what is shown of it */
  onGrown(_chatId) {}

  /** @param {Message} _message is removed, here or in another tab */
  onRemoved(_message) {}

  /** @param {string} _messageId */
  isWritten(_messageId) {
    return false;
  }

  /**
   * @param {Chat} chat
   * @param {Message[]} messages
   */
  #put(chat, messages) {
    this.#others?.touched(chat.id);
    this.keeper.keep({ kind: "put", chat, messages });
  }
}
