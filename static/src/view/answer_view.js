/**
 * An answer as it comes: how far the prompt is, what the model thinks, what it says, the functions
 * it calls, and what all of it costs.
 */

import { isAlive } from "../model/chat.js";
import { finishBlock } from "./blocks.js";
import { MarkdownView } from "../markdown.js";
import { MessageView } from "./message_view.js";
import { endWords, faultWords, liveWords, statsTitle, statsWords, waitWords } from "./words.js";

/**
 * @typedef {import("./message_view.js").Actions} Actions
 * @typedef {import("./message_view.js").Context} Context
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../wire/run.js").Run} Run
 */

const METER_EVERY_MS = 250;
const MOST_DOTS = 8;

export class AnswerView extends MessageView {
  #text;
  #reasoning;
  #meterAt = 0;
  #dots = 0;
  #calls = "";
  #thinking = false;
  /** Its Markdown is made; that of an answer far from view would cost for nothing. */
  #shown = false;

  /**
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(message, actions) {
    super("answer-template", message, actions);
    this.#text = new MarkdownView(this.parts.text, finishBlock);
    this.#reasoning = new MarkdownView(this.parts["reasoning-text"], finishBlock);
  }

  /**
   * Shows the answer as it is now. Cheap enough for every animation frame.
   * @param {Context} context
   */
  update({ run, versions, near, last, busy }) {
    const { message } = this;
    const alive = isAlive(message);
    const { status } = message;
    this.element.dataset.status = status;
    this.element.toggleAttribute("data-last", last);
    this.parts.text.setAttribute("aria-busy", `${alive}`);
    if (near) this.showIcons();
    if (near) this.#show(alive);
    else if (!this.#shown) this.set("text", message.text); // has about its size, and can be found
    this.#updateCalls();
    this.#updateWait(run);
    this.#updateFault();
    if (alive) this.#updateLive(run);
    else this.#showEnd();
    this.showVersions(versions);
    this.#updateActions(busy);
  }

  /** @param {boolean} alive */
  #show(alive) {
    const { status, text } = this.message;
    if (!this.#shown) this.parts.text.textContent = "";
    this.#shown = true;
    this.#updateReasoning(status === "reasoning");
    this.#text.update(alive ? text : shownText(text), !alive);
  }

  /** @param {boolean} thinking */
  #updateReasoning(thinking) {
    const { reasoning } = this.message;
    const fold = /** @type {HTMLDetailsElement} */ (this.parts.reasoning);
    fold.hidden = reasoning === "";
    if (reasoning === "") return;
    this.#reasoning.update(reasoning, !thinking);
    // Open while it is all there is to see, closed when the answer comes; then it is the reader's.
    if (thinking !== this.#thinking) fold.open = thinking;
    this.#thinking = thinking;
    this.set("reasoning-title", thinking ? "Thinking" : "What it thought");
  }

  #updateCalls() {
    const { calls } = this.message;
    const written = JSON.stringify(calls);
    if (written === this.#calls) return;
    this.#calls = written;
    this.parts.calls.hidden = calls.length === 0;
    this.parts.calls.replaceChildren(
      ...calls.map((call) => {
        const figure = document.createElement("figure");
        const caption = document.createElement("figcaption");
        const code = document.createElement("code");
        const block = document.createElement("pre");
        caption.textContent = `Calls ${call.name}`;
        code.textContent = indented(call.arguments) ?? call.arguments;
        block.append(code);
        figure.append(caption, block);
        return figure;
      }),
    );
  }

  /** @param {Run|null} run */
  #updateWait(run) {
    const { status } = this.message;
    const waiting = status === "waiting" || status === "prefill" || (run?.away ?? false);
    this.parts.wait.hidden = !waiting;
    if (!waiting) return;
    this.set("wait-text", waitWords(this.message, run));
    const bar = /** @type {HTMLProgressElement} */ (this.parts.prefill);
    const prefill = run?.prefill;
    bar.hidden = !prefill || status !== "prefill" || prefill.processed >= prefill.total;
    if (prefill) {
      bar.max = Math.max(prefill.total, 1);
      bar.value = prefill.processed;
    }
  }

  /** @param {Run|null} run */
  #updateLive(run) {
    this.set("note", run?.stopping ? "Stopping" : "");
    const now = performance.now();
    if (!run || now - this.#meterAt < METER_EVERY_MS) return;
    this.#meterAt = now;
    this.set("stats", liveWords(run.meter.tokensPerSecond, run.meter.batchSize));
    this.#updateDots(run.meter.batchSize);
  }

  #showEnd() {
    const { stats } = this.message;
    this.set("note", endWords(this.message));
    this.set("stats", stats ? statsWords(stats) : "");
    this.parts.stats.title = stats ? statsTitle(stats) : "";
    this.#updateDots(Math.round(stats?.batchSize ?? 0));
  }

  #updateFault() {
    const fault = faultWords(this.message);
    this.parts.fault.hidden = fault === null;
    this.set("fault-text", fault?.headline ?? "");
    this.set("fault-detail", fault?.detail ?? "");
  }

  /** @param {boolean} busy */
  #updateActions(busy) {
    const { text, status } = this.message;
    const alive = isAlive(this.message);
    this.buttons.copy.hidden = alive || text === "" || !navigator.clipboard;
    this.buttons.again.hidden = alive || busy;
    this.buttons.thrice.hidden = alive || busy;
    this.buttons.continue.hidden =
      alive || busy || text === "" || !["cut", "stopped", "interrupted", "failed"].includes(status);
    this.buttons.remove.hidden = alive;
  }

  /** @param {number} count one dot for each answer in the batch, the first of them this one */
  #updateDots(count) {
    if (count === this.#dots) return;
    this.#dots = count;
    const dots = Array.from({ length: Math.min(count, MOST_DOTS) }, () =>
      document.createElement("i"),
    );
    this.parts.dots.replaceChildren(...dots);
    if (count > MOST_DOTS) this.parts.dots.append(`+${count - MOST_DOTS}`);
  }
}

/**
 * @param {string} text of a finished answer
 * @returns {string} as Markdown; one that is an object or a list in JSON becomes a piece of code
 */
function shownText(text) {
  const pretty = /^\s*[[{]/.test(text) ? indented(text) : null;
  return pretty === null ? text : `~~~~json\n${pretty}\n~~~~`;
}

/** What is nested deeper grows by its indentation, without end: a few kilobytes to many megabytes. */
const MOST_GROWTH = 20;

/** Texts, brackets and signs, and whatever stands between them. */
const JSON_PARTS = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/**
 * Every part stays as it was written: numbers that JavaScript would round, and the order of keys.
 * @param {string} json
 * @returns {string|null} null for what is none, and for what would be far longer
 */
function indented(json) {
  try {
    JSON.parse(json);
  } catch {
    return null;
  }
  let pretty = "";
  let indent = "\n";
  let before = "";
  for (const [part] of json.matchAll(JSON_PARTS)) {
    const closes = part === "}" || part === "]";
    const isIn = before === "{" || before === "[";
    if (closes) indent = indent.slice(0, -2);
    if (closes ? !isIn : isIn || before === ",") pretty += indent;
    pretty += part === ":" ? ": " : part;
    if (part === "{" || part === "[") indent += "  ";
    before = part;
    if (pretty.length > MOST_GROWTH * json.length) return null;
  }
  return pretty;
}
