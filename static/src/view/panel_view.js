/**
 * The coalescer at work: how many answers share a batch over the last minute, who waits, how much
 * of the KV cache is in use. It draws only what the server tells, and only while it is open.
 */

import { iconButton } from "./icon.js";
import { looks } from "../wire/live.js";

/** @typedef {import("../wire/live.js").Look} Look */

const SECONDS = 60;
const WIDTH = 240;
const HEIGHT = 72;

const FIGURES = [
  ["sessions", "Answers now"],
  ["batch", "Answers per batch"],
  ["waiting", "Waiting"],
  ["speed", "Tokens/s"],
  ["pages", "KV pages in use"],
  ["cached", "Read from the cache"],
];

export class PanelView {
  /** @type {{at: number, batch: number, speed: number}[]} */
  #points = [];
  /** @type {Look|null} */
  #last = null;
  /** @type {AbortController|null} */
  #watching = null;
  /** @type {Map<string, HTMLElement>} */
  #figures = new Map();
  #bars = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  #most = document.createElement("p");
  #element;
  #key;

  /**
   * @param {HTMLElement} element
   * @param {() => string} key
   * @param {() => void} close
   */
  constructor(element, key, close) {
    this.#element = element;
    this.#key = key;
    const title = document.createElement("h2");
    title.textContent = "The server";
    const leave = iconButton("i-close", "Close");
    leave.addEventListener("click", close);
    const top = document.createElement("div");
    top.className = "row";
    top.append(title, leave);
    this.#bars.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.#bars.setAttribute("preserveAspectRatio", "none");
    this.#bars.setAttribute("role", "img");
    this.#bars.setAttribute("aria-label", "Answers per batch over the last minute");
    this.#most.className = "hint";
    const list = document.createElement("dl");
    for (const [name, label] of FIGURES) {
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = label;
      value.textContent = "–";
      this.#figures.set(name, value);
      list.append(term, value);
    }
    element.append(top, this.#bars, this.#most, list);
  }

  /** @param {boolean} open */
  show(open) {
    this.#element.hidden = !open;
    this.#watching?.abort();
    this.#watching = null;
    if (!open) return;
    this.#watching = new AbortController();
    void this.#watch(this.#watching.signal);
  }

  /** @param {AbortSignal} signal */
  async #watch(signal) {
    for await (const look of looks(this.#key, signal)) {
      if (signal.aborted) return;
      if (look) this.#take(look);
      this.#element.toggleAttribute("data-away", look === null);
    }
  }

  /** @param {Look} look */
  #take(look) {
    const last = this.#last;
    this.#last = look;
    if (last && look.steps >= last.steps && look.time > last.time) {
      const steps = look.steps - last.steps;
      const batch = steps > 0 ? (look.rows - last.rows) / steps : 0;
      const speed = (look.sampled_tokens - last.sampled_tokens) / (look.time - last.time);
      const isKnown = Number.isFinite(batch) && Number.isFinite(speed);
      if (isKnown) this.#points.push({ at: look.time, batch, speed });
    }
    // A server that was started anew counts its time anew.
    const isShown = (/** @type {number} */ at) => at > look.time - SECONDS && at <= look.time;
    this.#points = this.#points.filter(({ at }) => isShown(at));
    this.#draw(look);
  }

  /** @param {Look} look */
  #draw(look) {
    const newest = this.#points.at(-1);
    const used = look.total_pages - look.free_pages;
    this.#set("sessions", `${look.sessions} of ${look.max_sessions}`);
    const busy = look.sessions > 0 ? newest : undefined; // the last step is over when nobody is there
    this.#set("batch", (busy?.batch ?? 0).toFixed(1));
    this.#set("waiting", `${look.waiting}`);
    this.#set("speed", (busy?.speed ?? 0).toFixed(0));
    this.#set("pages", `${used} of ${look.total_pages}`);
    this.#set("cached", `${look.cached_tokens} tokens`);
    const most = Math.max(4, ...this.#points.map(({ batch }) => Math.ceil(batch)));
    this.#most.textContent = `Last minute; the top is ${most} per batch`;
    this.#bars.replaceChildren(
      ...this.#points.map(({ at, batch }) => {
        const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        const height = (batch / most) * HEIGHT;
        const x = WIDTH - ((look.time - at) / SECONDS) * WIDTH - 2;
        bar.setAttribute("x", x.toFixed(1));
        bar.setAttribute("y", (HEIGHT - height).toFixed(1));
        bar.setAttribute("width", "2");
        bar.setAttribute("height", height.toFixed(1));
        return bar;
      }),
    );
  }

  /**
   * @param {string} name
   * @param {string} text
   */
  #set(name, text) {
    const value = this.#figures.get(name);
    if (value && value.textContent !== text) value.textContent = text;
  }
}
