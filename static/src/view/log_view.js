/**
 * The messages of a chat in a scrolling list: keeps one view per message, draws at most once a
 * frame, and follows the newest text only while the reader is at the bottom.
 */

import { isAlive } from "../model/chat.js";
import { AnswerView } from "./answer_view.js";
import { CandidatesView } from "./candidates_view.js";
import { find } from "./find.js";
import { putAt } from "./put_at.js";
import { QuestionView } from "./question_view.js";

/**
 * @typedef {import("../chats.js").Chats} Chats
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("./message_view.js").Actions} Actions
 */

/** Closer to the end than this (pixels) counts as being at the bottom. */
const AT_BOTTOM = 24;
/** What is so close to the view (pixels) is made ready for it. */
const NEAR = 2000;
/** Drawing takes at most this share of the time, so that a very long text leaves the page quick. */
const SHARE = 1 / 3;
const FRAME_MS = 16;

export class LogView {
  /** @type {Map<string, AnswerView|QuestionView>} by message */
  #views = new Map();
  /** @type {Set<string>} messages to draw in the next frame */
  #changed = new Set();
  #chatId = "";
  /** @type {Set<string>} messages that were in view, or nearly */
  #near = new Set();
  #nearing;
  #frame = 0;
  #timer = 0;
  /** Milliseconds that the last drawing took. */
  #cost = 0;
  #follows = true;
  #scrollTop = 0;
  #chats;
  #actions;
  #log;
  #list;
  #latest;
  #candidates;

  /**
   * @param {{log: HTMLElement, list: HTMLElement, latest: HTMLElement}} elements
   * @param {Chats} chats
   * @param {Actions} actions
   */
  constructor({ log, list, latest }, chats, actions) {
    this.#log = log;
    this.#list = list;
    this.#latest = latest;
    this.#chats = chats;
    this.#actions = actions;
    this.#candidates = new CandidatesView((message) => {
      void actions.act("take", message);
      log.focus(); // the button is gone
    });
    log.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    latest.addEventListener("click", () => {
      this.follow();
      log.focus();
    });
    this.#nearing = new IntersectionObserver((entries) => this.#onNear(entries), {
      root: log,
      rootMargin: `${NEAR}px 0px`,
    });
    window.addEventListener("beforeprint", () => {
      for (const id of this.#views.keys()) {
        this.#near.add(id);
        this.#changed.add(id);
      }
      this.#draw();
    });
    new ResizeObserver(() => this.#follows && this.#toBottom()).observe(log);
    new ResizeObserver(() => this.#follows && this.#toBottom()).observe(list);
  }

  /**
   * Makes the list match the path that a chat shows.
   * @param {string} chatId
   */
  show(chatId) {
    const candidates = this.#chats.candidates(chatId);
    const path = this.#chats.path(chatId);
    const alone = candidates.length > 0 ? path.slice(0, -1) : path;
    const shown = new Set([...alone, ...candidates].map(({ id }) => id));
    const hadFocus = this.#list.contains(document.activeElement);
    for (const [id, view] of this.#views) {
      if (shown.has(id) && chatId === this.#chatId) continue;
      view.gone();
      view.element.remove();
      this.#nearing.unobserve(view.element);
      this.#near.delete(id);
      this.#views.delete(id);
    }
    this.#chatId = chatId;
    this.#changed.clear();
    const isNew = (/** @type {Message} */ { id }) => !this.#views.has(id);
    // Another version is shown where the reader is; what was just asked is at the end.
    const isAsked = [...alone, ...candidates].some((one) => isAlive(one) && isNew(one));
    for (const [place, message] of alone.entries()) {
      putAt(this.#list, place, this.#viewOf(message).element);
    }
    const columns = candidates.map((message) => this.#viewOf(message));
    this.#candidates.show(columns, path.at(-1));
    if (columns.length > 0) putAt(this.#list, alone.length, this.#candidates.element);
    else this.#candidates.element.remove();
    const versions = this.#chats.versionsIn(chatId);
    for (const id of shown) this.#update(id, versions);
    if (isAsked) this.follow();
    // What had it may be gone, with the keyboard's place on the page.
    if (hadFocus && !this.#list.contains(document.activeElement)) this.#log.focus();
  }

  /**
   * Draws a changed message in the next frame, however often it changes until then. Its end is
   * drawn at once, since a page in the background has no frames.
   * @param {Message} message
   */
  changed(message) {
    if (!this.#views.has(message.id)) return;
    this.#changed.add(message.id);
    if (!isAlive(message)) {
      for (const id of this.#views.keys()) this.#changed.add(id); // their actions depend on it
      return this.#draw();
    }
    this.#drawSoon();
  }

  /** Goes to the newest text and stays with it. */
  follow() {
    this.#setFollows(true);
    this.#toBottom();
  }

  /**
   * @param {string} messageId
   * @returns {boolean} it is one of those that are shown
   */
  has(messageId) {
    return this.#views.has(messageId);
  }

  /**
   * Goes to where words stand in a message, and selects them.
   * @param {string} messageId
   * @param {string[]} words in small letters
   */
  goTo(messageId, words) {
    const view = this.#views.get(messageId);
    if (!view) return;
    this.#setFollows(false);
    this.#near.add(messageId);
    this.#update(messageId, this.#chats.versionsIn(this.#chatId)); // drawn, so that there are words
    const place = find(view.parts.text, words);
    (place?.startContainer.parentElement ?? view.element).scrollIntoView({ block: "center" });
    this.#log.focus();
    if (place) getSelection()?.setBaseAndExtent(place.startContainer, place.startOffset, place.endContainer, place.endOffset);
  }

  /** @param {boolean} follows */
  #setFollows(follows) {
    this.#follows = follows;
    this.#log.toggleAttribute("data-follows", follows);
  }

  /** @param {Message} message */
  #viewOf(message) {
    const had = this.#views.get(message.id);
    if (had) return had;
    const View = message.role === "user" ? QuestionView : AnswerView;
    const view = new View(message, this.#actions);
    this.#views.set(message.id, view);
    view.element.dataset.id = message.id;
    this.#nearing.observe(view.element);
    return view;
  }

  /** @returns {number} pixels below what is seen */
  #left() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    return scrollHeight - clientHeight - scrollTop;
  }

  #draw() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#timer = this.#frame = 0;
    const began = performance.now();
    const versions = this.#chats.versionsIn(this.#chatId);
    for (const id of this.#changed) this.#update(id, versions);
    this.#changed.clear();
    if (this.#follows) this.#toBottom();
    else this.#hideLatest(this.#left() < AT_BOTTOM);
    this.#cost = performance.now() - began;
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #onNear(entries) {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      this.#nearing.unobserve(target);
      const { id = "" } = /** @type {HTMLElement} */ (target).dataset;
      this.#near.add(id);
      this.#changed.add(id);
    }
    this.#drawSoon();
  }

  #drawSoon() {
    if (this.#frame !== 0 || this.#timer !== 0) return;
    const pause = this.#cost / SHARE - this.#cost;
    if (pause < FRAME_MS) return this.#drawInFrame();
    this.#timer = window.setTimeout(() => this.#drawInFrame(), pause);
  }

  #drawInFrame() {
    this.#timer = 0;
    this.#frame = requestAnimationFrame(() => this.#draw());
  }

  /**
   * @param {string} id
   * @param {(message: Message) => Message[]} versions
   */
  #update(id, versions) {
    const view = this.#views.get(id);
    if (!view) return;
    const { message } = view;
    const isCandidate = this.#candidates.has(view);
    const last = isCandidate || id === this.#chats.get(message.chatId)?.leaf;
    view.update({
      run: this.#chats.runOf(message),
      versions: versions(message),
      near: this.#near.has(id) || isAlive(message) || last,
      last,
      busy: isCandidate || this.#chats.runsIn(message.chatId).length > 0,
    });
  }

  #toBottom() {
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#scrollTop = this.#log.scrollTop;
    this.#hideLatest(true);
  }

  /** @param {boolean} hidden the way to the newest text; styles are computed anew when it is set */
  #hideLatest(hidden) {
    if (this.#latest.hidden !== hidden) this.#latest.hidden = hidden;
  }

  /** Upwards is the reader's doing, since the page itself only ever scrolls down. */
  #onScroll() {
    const { scrollTop } = this.#log;
    const left = this.#left();
    if (left <= 1) this.#setFollows(true);
    else if (scrollTop < this.#scrollTop) this.#setFollows(false);
    else if (left < AT_BOTTOM) this.#setFollows(true);
    this.#scrollTop = scrollTop;
    this.#hideLatest(this.#follows || left < AT_BOTTOM);
  }
}
