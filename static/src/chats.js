/**
 * The chats and the answers on their way into them: asks, stops, edits, branches. It knows the data
 * and the wire, and nothing of the DOM.
 */

import {
  allBelow,
  isAlive,
  newMessage,
  newestLeafBelow,
  pathTo,
  settingsFor,
  titleFrom,
  versionsIn,
} from "./model/chat.js";
import { Shelf } from "./shelf.js";
import { claim } from "./store/claim.js";
import { bodyOf } from "./wire/body.js";
import { Runs } from "./wire/runs.js";

/**
 * @typedef {import("./model/chat.js").Attachment} Attachment
 * @typedef {import("./model/chat.js").Chat} Chat
 * @typedef {import("./model/chat.js").Message} Message
 * @typedef {import("./store/database.js").Database} Database
 * @typedef {import("./wire/connection.js").Connection} Connection
 * @typedef {import("./wire/run.js").Run} Run
 */

export class Chats extends Shelf {
  #runs;
  /** @type {Map<string, () => void>} lets other tabs at a message that is not at the server yet */
  #claims = new Map();
  /** @type {Map<string, string|null>} the last message that was shown below one, by its id */
  #left = new Map();

  /**
   * @param {Database|null} database null where the browser keeps nothing
   * @param {Connection} connection
   * @param {import("./shelf.js").Observer} observer
   */
  constructor(database, connection, observer) {
    super(database, observer);
    this.#runs = new Runs(connection, {
      onNamed: ({ message }) => {
        if (this.#has(message)) void this.#letGo(message);
      },
      onProgress: ({ message }) => {
        if (this.#has(message)) this.keeper.soon(message);
        observer.onMessage(message);
      },
      onEnd: ({ message }) => this.#ended(message),
    });
  }

  /** @param {Message} message */
  runOf(message) {
    return this.#runs.get(message.id);
  }

  /**
   * @param {string} chatId
   * @returns {Run[]} the answers of a chat that are alive
   */
  runsIn(chatId) {
    return this.#runs.in(chatId);
  }

  /**
   * Has the messages of a chat ready, and follows those that were being written.
   * @param {string} chatId
   * @override
   */
  async open(chatId) {
    const found = await super.open(chatId);
    for (const message of found) if (isAlive(message)) this.#resume(message);
    return found;
  }

  /**
   * @param {string} chatId
   * @override
   */
  remove(chatId) {
    super.remove(chatId);
    this.stop(chatId);
  }

  /**
   * @param {string} chatId
   * @override
   */
  onGone(chatId) {
    this.stop(chatId);
  }

  /**
   * @param {string} chatId
   * @override
   */
  onGrown(chatId) {
    for (const message of this.tree(chatId).values()) {
      if (isAlive(message) && !this.runOf(message)) this.#resume(message);
    }
  }

  /**
   * @param {Message} message
   * @override
   */
  onRemoved(message) {
    this.keeper.drop(message);
    this.#runs.get(message.id)?.stop();
  }

  /**
   * @param {string} messageId
   * @returns {boolean} this tab writes it
   * @override
   */
  isWritten(messageId) {
    return this.#runs.get(messageId) !== null;
  }

  /**
   * Asks a question at the end of what is shown.
   * @param {string} chatId
   * @param {string} text
   * @param {Attachment[]} [attachments]
   */
  send(chatId, text, attachments = []) {
    this.#ask(chatId, this.get(chatId)?.leaf ?? null, text, attachments);
  }

  /**
   * Asks an earlier question in other words; what followed the old ones stays a branch.
   * @param {Message} question
   * @param {string} text
   */
  edit(question, text) {
    this.#ask(question.chatId, question.parent, text, question.attachments);
  }

  /**
   * Asks for other answers to the same question at once. Several are candidates, side by side; the
   * chat goes on from the first of them, unless the reader takes another.
   * @param {Pick<Message, "chatId"|"parent">} answer
   * @param {number} [count]
   */
  again({ chatId, parent }, count = 1) {
    const chat = this.get(chatId);
    if (!chat) return;
    const made = this.#answers(chat, parent, count);
    this.show(chat, made[0]?.id ?? parent, made);
  }

  /**
   * Asks once more what has no answer any more.
   * @param {Message} question
   */
  answer({ chatId, id }) {
    this.again({ chatId, parent: id });
  }

  /**
   * Has an answer that was cut or stopped go on, as a version of its own.
   * @param {Message} answer
   */
  continue(answer) {
    const chat = this.get(answer.chatId);
    if (!chat) return;
    const { chatId, parent, text, reasoning } = answer;
    const now = laterThan(this.tree(chatId));
    const message = newMessage({ chatId, parent, role: "assistant", text, reasoning }, now);
    chat.candidates = [];
    this.#begin(chat, message, [...pathTo(this.tree(chatId), parent), answer]);
    this.show(chat, message.id, [message]);
  }

  /** @param {string} chatId ends every answer of it that is alive */
  stop(chatId) {
    for (const run of this.runsIn(chatId)) run.stop();
  }

  /** @param {Message} candidate is shown alone from now on */
  choose(candidate) {
    const chat = this.get(candidate.chatId);
    if (!chat) return;
    chat.candidates = [];
    this.switchTo(candidate);
  }

  /**
   * @param {Chat} chat
   * @param {string|null} leaf
   * @param {Message[]} [made]
   * @override
   */
  show(chat, leaf, made) {
    for (const { id } of this.path(chat.id)) this.#left.set(id, chat.leaf);
    super.show(chat, leaf, made);
  }

  /**
   * Shows this version, and below it what the reader left there, or what was written last.
   * @param {Message} message
   */
  switchTo(message) {
    const chat = this.get(message.chatId);
    if (!chat) return;
    const tree = this.tree(message.chatId);
    const left = tree.get(this.#left.get(message.id) ?? "") ?? message;
    this.show(chat, newestLeafBelow(tree, left.id));
    this.onGrown(chat.id); // another tab may write it, and be closed before its end
  }

  /**
   * Removes a message and everything below it.
   * @param {Message} message
   */
  removeMessage(message) {
    const { chatId, parent } = message;
    const chat = this.get(chatId);
    const tree = this.tree(chatId);
    if (!chat) return;
    const others = versionsIn(tree)(message).filter(({ id }) => id !== message.id);
    const ids = allBelow(tree, message.id);
    this.removeFrom(chatId, ids);
    const next = others.at(-1);
    if (!next && parent === null && !chat.named) chat.title = titleFrom("");
    if (chat.leaf !== null && tree.has(chat.leaf)) this.show(chat, chat.leaf); // it was beside this
    else this.show(chat, next ? newestLeafBelow(tree, next.id) : parent);
  }

  /**
   * @param {string} chatId
   * @param {string|null} parent
   * @param {string} text
   * @param {Attachment[]} attachments
   */
  #ask(chatId, parent, text, attachments) {
    const chat = this.get(chatId);
    if (!chat) return;
    const now = laterThan(this.tree(chatId));
    const question = newMessage({ chatId, parent, role: "user", text, attachments }, now);
    this.tree(chatId).set(question.id, question);
    if (!chat.named && parent === null) chat.title = titleFrom(text || attachments[0]?.name || "");
    const made = this.#answers(chat, question.id, 1);
    this.show(chat, made[0]?.id ?? question.id, [question, ...made]);
  }

  /**
   * @param {Chat} chat
   * @param {string|null} question
   * @param {number} count
   * @returns {Message[]} the new answers
   */
  #answers(chat, question, count) {
    const now = laterThan(this.tree(chat.id));
    const made = Array.from({ length: count }, (_, number) =>
      newMessage({ chatId: chat.id, parent: question, role: "assistant" }, now + number),
    );
    const path = pathTo(this.tree(chat.id), question);
    chat.candidates = count > 1 ? made.map(({ id }) => id) : [];
    for (const message of made) this.#begin(chat, message, path);
    return made;
  }

  /**
   * @param {Chat} chat
   * @param {Message} message a new answer
   * @param {Message[]} path what it answers, or continues
   */
  #begin(chat, message, path) {
    this.tree(chat.id).set(message.id, message);
    const settings = settingsFor(chat, this.versionsIn(chat.id)(message), message);
    this.#runs.start(message).ask((whole) => bodyOf(settings, path, whole));
    void claim(message.id, () => this.#unnamed(message));
  }

  /**
   * @param {Message} message
   * @returns {Promise<void>} when the database has its name, or it has ended
   */
  #unnamed(message) {
    if (message.responseId || !isAlive(message)) return Promise.resolve();
    return new Promise((resolve) => this.#claims.set(message.id, resolve));
  }

  /** @param {Message} message that has a name, or an end */
  async #letGo(message) {
    await this.keeper.now(message);
    this.#free(message.id);
  }

  /** @param {string} messageId */
  #free(messageId) {
    this.#claims.get(messageId)?.();
    this.#claims.delete(messageId);
  }

  /**
   * Goes on with an answer of a page that is gone. What never reached the server is asked anew,
   * unless another tab still means to.
   * @param {Message} message
   */
  #resume(message) {
    if (message.responseId || message.text) return this.#runs.start(message).resume();
    void claim(message.id, async () => {
      if (this.runOf(message)) return;
      await this.readAgain(message);
      const chat = this.get(message.chatId);
      if (!chat || !isAlive(message) || this.runOf(message)) return;
      const run = this.#runs.start(message);
      this.observer.onChat(message.chatId);
      if (message.responseId) return run.resume();
      const path = pathTo(this.tree(message.chatId), message.parent);
      const settings = settingsFor(chat, this.versionsIn(chat.id)(message), message);
      run.ask((whole) => bodyOf(settings, path, whole));
      await this.#unnamed(message);
    });
  }

  /**
   * @param {Message} message
   * @returns {boolean} it was not removed meanwhile, and so is to be kept
   */
  #has({ id, chatId }) {
    return this.tree(chatId).has(id);
  }

  /** @param {Message} message */
  #ended(message) {
    if (this.#has(message)) void this.#letGo(message);
    else {
      this.keeper.drop(message);
      this.#free(message.id);
    }
    this.observer.onMessage(message);
    this.observer.onList();
  }
}

/**
 * @param {import("./model/chat.js").Tree} tree
 * @returns {number} the time, but later than all that is there: versions are in this order, and a
 *   clock may be set back
 */
function laterThan(tree) {
  let now = Date.now();
  for (const { createdAt } of tree.values()) {
    if (createdAt >= now && Number.isFinite(createdAt)) now = createdAt + 1;
  }
  return now;
}
