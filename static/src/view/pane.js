/**
 * One open chat: its messages, where the reader writes, and how much of the model's context it
 * fills. The page has one of them, or two beside each other.
 */

import { allBelow, isAlive } from "../model/chat.js";
import { wordsOf } from "../store/search.js";
import { Composer } from "./composer.js";
import { LogView } from "./log_view.js";
import { contextWords, spokenWords } from "./words.js";

/**
 * @typedef {import("../chats.js").Chats} Chats
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../wire/connection.js").Connection} Connection
 * @typedef {import("./message_view.js").Action} Action
 */

/**
 * @typedef {object} On
 * @property {(words: string) => void} say for screen readers
 * @property {(pane: Pane) => void} entered the reader's focus has come into it
 * @property {(pane: Pane) => void} opened it shows another chat
 */

export class Pane {
  /** Of the chat that it shows; empty before the first. */
  chatId = "";
  /** The chat that was asked for last, which may still be read. */
  wanted = "";
  /** @type {ChildNode[]|null} what stands below the composer while nothing is told there */
  #hint = null;
  /** That is that an answer is being written, which is over with its end. */
  #tellsEarly = false;
  #by;
  #chats;
  #connection;
  #on;
  #log;
  element;
  composer;

  /**
   * @param {typeof import("./by.js").by} by finds an element of this pane
   * @param {Chats} chats
   * @param {Connection} connection
   * @param {On} on
   */
  constructor(by, chats, connection, on) {
    this.#by = by;
    this.#chats = chats;
    this.#connection = connection;
    this.#on = on;
    this.element = by("pane");
    this.#log = new LogView(
      { log: by("log"), list: by("messages"), latest: by("latest") },
      chats,
      {
        act: (action, message) => this.#act(action, message),
        below: (message) => allBelow(chats.tree(message.chatId), message.id).length,
        ask: (message, text) => chats.edit(message, text),
        edited: (message) => chats.edited(message),
        keepEdit: (message, text) => chats.keepEdit(message, text),
        switchTo: (message) => chats.switchTo(message),
      },
    );
    this.composer = new Composer(
      {
        form: by("composer"),
        field: by("draft"),
        button: by("go"),
        attach: by("attach"),
        picker: by("attach-file"),
        files: by("files"),
      },
      {
        send: (text, files) => {
          this.#tellNoMore();
          chats.send(this.chatId, text, files);
        },
        early: () => {
          this.tell("The answer is still being written. Esc stops it.");
          this.#tellsEarly = true;
        },
        stop: () => this.stop(),
        draft: (chatId, draft) => {
          if (chats.get(chatId) && chats.get(chatId)?.draft !== draft) chats.change(chatId, { draft });
        },
        attached: (chatId) => chats.files(chatId),
        files: (chatId, files) => chats.keepFiles(chatId, files),
        say: (words) => this.tell(words),
      },
    );
    this.composer.takeDropsOn(this.element);
    by("ideas").addEventListener("click", (event) => {
      const idea = /** @type {HTMLElement} */ (event.target).closest("button");
      if (idea) chats.send(this.chatId, idea.textContent ?? "");
    });
    for (const enters of ["focusin", "pointerdown"])
      this.element.addEventListener(enters, () => on.entered(this));
  }

  /** @param {string} chatId */
  async show(chatId) {
    this.wanted = chatId;
    try {
      await this.#chats.open(chatId);
    } catch {
      if (this.wanted === chatId) this.wanted = this.chatId;
      return this.tell("This browser does not let the page read this chat. A reload may help.");
    }
    // The reader is elsewhere by now, or has removed it; what is written in no chat would be lost.
    if (this.wanted !== chatId) return;
    if (!this.#chats.get(chatId)) {
      this.wanted = this.chatId;
      return;
    }
    if (this.chatId !== chatId) this.#tellNoMore();
    this.chatId = chatId;
    this.composer.show(chatId, this.#chats.get(chatId)?.draft ?? "");
    this.#log.show(chatId);
    this.#log.follow();
    this.refresh();
    this.#on.opened(this);
  }

  /**
   * Shows where words were found in its chat, on whichever branch that is.
   * @param {string} messageId
   * @param {string} query
   */
  goTo(messageId, query) {
    const message = this.#chats.tree(this.chatId).get(messageId);
    if (!message) return;
    if (!this.#log.has(messageId)) this.#chats.switchTo(message);
    this.#log.goTo(messageId, wordsOf(query));
  }

  /** Is shown no more. */
  leave() {
    this.composer.leave();
    this.#log.show(""); // nobody else writes there for this one
    this.wanted = this.chatId = "";
  }

  /** The chat shows other messages now. */
  changed() {
    this.#log.show(this.chatId);
    this.refresh();
  }

  /** @param {Message} message of its chat */
  changedMessage(message) {
    this.#log.changed(message);
    if (isAlive(message)) return this.#showBusy(); // all else stays as it is, word after word
    if (this.#tellsEarly) this.#tellNoMore();
    this.refresh();
    this.#on.say(spokenWords(message));
  }

  refresh() {
    const chat = this.#chats.get(this.chatId);
    this.#by("empty").hidden = chat?.leaf !== null;
    this.showTitle();
    this.#showBusy();
    this.showContext();
  }

  showTitle() {
    this.#by("pane-title").textContent = this.#chats.get(this.chatId)?.title ?? "";
  }

  #showBusy() {
    const runs = this.#chats.runsIn(this.chatId);
    this.composer.setBusy(runs.length > 0, runs.length > 0 && runs.every(({ stopping }) => stopping));
  }

  /** How much of the model's context this chat fills, by its latest answer. */
  showContext() {
    const room = this.#connection.contextLength;
    const stats = this.#chats.path(this.chatId).findLast(({ stats }) => stats?.promptTokens)?.stats;
    const used = (stats?.promptTokens ?? 0) + (stats?.outputTokens ?? 0);
    this.#by("context").hidden = !room || used === 0;
    if (!room || used === 0) return;
    this.#by("context-text").textContent = contextWords(used, room);
    this.#by("context-fill").style.width = `${Math.min((100 * used) / room, 100)}%`;
  }

  stop() {
    this.#chats.stop(this.chatId);
  }

  /** @param {string} words below the composer until the reader goes on, and for screen readers */
  tell(words) {
    const hint = this.#by("composer-hint");
    if (this.#hint && hint.textContent === words) return;
    this.#hint ??= [...hint.childNodes];
    hint.textContent = words;
    this.#on.say(words);
  }

  #tellNoMore() {
    if (this.#hint) this.#by("composer-hint").replaceChildren(...this.#hint);
    this.#hint = null;
    this.#tellsEarly = false;
  }

  /**
   * @param {Action} action
   * @param {Message} message
   */
  #act(action, message) {
    switch (action) {
      case "copy":
        return navigator.clipboard.writeText(message.text).then(
          () => (this.#on.say("Copied"), true),
          () => (this.tell("The browser did not allow copying."), false),
        );
      case "answer":
        return this.#chats.answer(message);
      case "again":
        return this.#chats.again(message);
      case "thrice":
        return this.#chats.again(message, 3);
      case "take":
        return this.#chats.choose(message);
      case "continue":
        return this.#chats.continue(message);
      case "remove":
        return this.#chats.removeMessage(message);
    }
  }
}
