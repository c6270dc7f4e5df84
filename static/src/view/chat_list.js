/**
 * The list of chats: pinned ones first, with a mark where an answer is being written, a search
 * through all of them, and what can be done with one.
 */

import { iconButton } from "./icon.js";
import { MOST_TITLE_CHARACTERS, isUnused, titleFrom } from "../model/chat.js";
import { wordsOf } from "../store/search.js";
import { find } from "./find.js";
import { putAt } from "./put_at.js";
import { sure } from "./sure.js";

/**
 * @typedef {import("../chats.js").Chats} Chats
 * @typedef {import("../model/chat.js").Chat} Chat
 */

/**
 * @typedef {object} On
 * @property {(chatId: string) => void} open
 * @property {(chatId: string) => void} openBeside
 * @property {(chatId: string, messageId: string, query: string) => void} openAt where words were found
 */

const SEARCH_AFTER_MS = 150;

export class ChatList {
  /** @type {Map<string, import("../store/search.js").Found>|null} what a search has found */
  #found = null;
  #renaming = "";
  /** @type {Map<string, {chat: Chat, looks: string, item: HTMLElement}>} a list may have thousands */
  #items = new Map();
  #timer = 0;
  #chats;
  #elements;
  #on;
  #currentId = "";
  #besideId = "";

  /**
   * @param {{list: HTMLElement, search: HTMLInputElement, empty: HTMLElement}} elements
   * @param {Chats} chats
   * @param {On} on
   */
  constructor(elements, chats, on) {
    this.#elements = elements;
    this.#chats = chats;
    this.#on = on;
    elements.search.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = window.setTimeout(() => void this.#search(), SEARCH_AFTER_MS);
    });
    // There Escape empties the field, which the browser does; it does not stop an answer.
    elements.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Enter" && !event.isComposing) void this.#openFound();
    });
  }

  /**
   * @param {string} currentId where the reader is
   * @param {string} [besideId] the other chat that is open
   */
  show(currentId, besideId = "") {
    this.#currentId = currentId;
    this.#besideId = besideId;
    if (this.#renaming) return; // the field must not go away under the reader's hands
    const { list, empty } = this.#elements;
    const shown = this.#chats.list.filter(
      (chat) =>
        (!isUnused(chat) || chat.id === currentId || chat.id === besideId) &&
        (this.#found?.has(chat.id) ?? true),
    );
    const focused = document.activeElement;
    const focusedId = list.contains(focused)
      ? /** @type {HTMLElement} */ (focused).closest("li")?.dataset.id
      : undefined;
    const action = /** @type {HTMLElement|null} */ (focused)?.dataset.action;
    const place = [...list.children].findIndex((item) => item.contains(focused));
    const ids = new Set(shown.map(({ id }) => id));
    for (const [id, { item }] of this.#items) {
      if (ids.has(id)) continue;
      item.remove();
      this.#items.delete(id);
    }
    for (const [at, chat] of shown.entries()) {
      putAt(list, at, this.#itemOf(chat));
    }
    const isLost = focusedId !== undefined && document.activeElement !== focused;
    if (isLost && shown.some(({ id }) => id === focusedId)) this.#focus(focusedId, action);
    else if (isLost) this.#focus((shown[place] ?? shown.at(-1))?.id ?? ""); // it was deleted
    empty.hidden = shown.length > 0;
    empty.textContent = this.#found ? "Nothing found" : "";
  }

  /**
   * @param {string} chatId
   * @param {string} [action]
   */
  #focus(chatId, action) {
    const { list } = this.#elements;
    const item = list.querySelector(`li[data-id="${CSS.escape(chatId)}"]`);
    // What can be done with a chat is only there once the focus is in its row.
    for (const one of ["open", action])
      /** @type {HTMLElement|null|undefined} */ (item?.querySelector(`[data-action="${one}"]`))?.focus();
  }

  /** Lists all chats again, whatever was searched for. */
  showAll() {
    this.#elements.search.value = "";
    void this.#search();
  }

  async #search() {
    const query = this.#elements.search.value.trim();
    const found = query ? await this.#chats.search(query) : null;
    if (query !== this.#elements.search.value.trim()) return; // other words are searched for by now
    this.#found = found;
    this.show(this.#currentId, this.#besideId);
  }

  /** Opens the first chat that was found. */
  async #openFound() {
    await this.#search();
    const first = this.#elements.list.querySelector("li")?.dataset.id;
    if (this.#found && first) this.#open(first);
  }

  /** @param {string} chatId is opened where the words are that were searched for, if any */
  #open(chatId) {
    const messageId = this.#found?.get(chatId)?.messageId;
    if (messageId) this.#on.openAt(chatId, messageId, this.#elements.search.value);
    else this.#on.open(chatId);
  }

  /**
   * @param {Chat} chat
   * @returns {HTMLElement} the one that was there, where it would look the same
   */
  #itemOf(chat) {
    const { id, pinned } = chat;
    const busy = this.#chats.runsIn(id).length > 0;
    const place = id === this.#currentId ? "here" : id === this.#besideId ? "beside" : "";
    const excerpt = this.#found?.get(id)?.excerpt ?? "";
    const looks = JSON.stringify([titleOf(chat), pinned, busy, place, excerpt]);
    const had = this.#items.get(id);
    if (had?.chat === chat && had.looks === looks) return had.item;
    const item = this.#item(chat, excerpt);
    had?.item.replaceWith(item);
    this.#items.set(id, { chat, looks, item });
    return item;
  }

  /**
   * @param {Chat} chat
   * @param {string} excerpt of what was found in it
   */
  #item(chat, excerpt) {
    const item = document.createElement("li");
    item.dataset.id = chat.id;
    item.toggleAttribute("data-pinned", chat.pinned);
    const busy = this.#chats.runsIn(chat.id).length > 0;
    item.toggleAttribute("data-busy", busy);
    const title = titleOf(chat);
    const open = document.createElement("button");
    open.type = "button";
    open.dataset.action = "open";
    open.textContent = title;
    open.addEventListener("click", ({ ctrlKey, metaKey }) =>
      ctrlKey || metaKey ? this.#on.openBeside(chat.id) : this.#open(chat.id),
    );
    if (excerpt) open.append(excerptLine(excerpt, wordsOf(this.#elements.search.value)));
    open.dir = "auto";
    open.title = title;
    if (chat.id === this.#currentId) open.setAttribute("aria-current", "page");
    if (chat.id === this.#besideId) open.setAttribute("aria-current", "true");
    if (busy) open.setAttribute("aria-description", "an answer is being written");
    const actions = document.createElement("span");
    actions.className = "chat-actions";
    const remove = button("delete", "i-bin", "Delete");
    sure(remove, () => this.#chats.remove(chat.id));
    actions.append(
      button("pin", "i-pin", chat.pinned ? "Unpin" : "Pin", () =>
        this.#chats.change(chat.id, { pinned: !chat.pinned }),
      ),
      button("rename", "i-edit", "Rename", () => this.#rename(chat, item)),
      remove,
    );
    item.append(open, actions);
    return item;
  }

  /**
   * @param {Chat} chat
   * @param {HTMLElement} item
   */
  #rename(chat, item) {
    this.#renaming = chat.id;
    const field = document.createElement("input");
    field.maxLength = MOST_TITLE_CHARACTERS;
    field.value = chat.title;
    field.setAttribute("aria-label", "Title");
    field.dir = "auto";
    const end = (/** @type {boolean} */ keep) => {
      if (this.#renaming !== chat.id) return;
      this.#renaming = "";
      this.#items.delete(chat.id); // the field stands in it
      item.remove();
      const title = field.value.trim();
      if (keep && title) this.#chats.change(chat.id, { title, named: true });
      this.show(this.#currentId, this.#besideId);
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault(); // Enter would press the button that gets the focus
      end(event.key === "Enter");
      this.#focus(chat.id, "rename");
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.select();
  }
}

/** @param {Chat} chat by what is being written, where that is all it has */
function titleOf({ title, named, leaf, draft }) {
  return leaf === null && !named && draft ? titleFrom(draft) : title;
}

/**
 * @param {string} text
 * @param {string[]} words the first of them in it is marked
 */
function excerptLine(text, words) {
  const line = document.createElement("span");
  line.className = "excerpt";
  line.dir = "auto";
  line.textContent = text;
  find(line, words)?.surroundContents(document.createElement("mark"));
  return line;
}

/**
 * @param {string} action
 * @param {string} name of its picture
 * @param {string} label
 * @param {() => void} [on]
 */
function button(action, name, label, on) {
  const made = iconButton(name, label);
  made.dataset.action = action;
  if (on) made.addEventListener("click", on);
  return made;
}
