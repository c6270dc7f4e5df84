/**
 * One WebSocket to the server, kept up: it is opened anew with growing delays, requests wait for
 * it, and events find the request they belong to.
 */

import { probe } from "./probe.js";

/**
 * @typedef {{name: "checking"}
 *   | {name: "open"}
 *   | {name: "key", rejected: boolean}
 *   | {name: "waiting", why: "lost"|"unreachable"|"loading"|"refused", message: string, until: number}
 * } Phase `until` is in milliseconds of `performance.now()`
 */

/**
 * @typedef {object} Request
 * @property {(socketNumber: number) => object} build makes the `response.create` when it can be
 *   sent; a conversation chain lives and dies with its socket, hence the number
 * @property {(event: any) => void} onEvent every event of the response, the last one included
 * @property {(code: number) => void} onLost the socket went (with this close code) before the end
 */

/**
 * A request and how far it came.
 * @typedef {{request: Request, begun: boolean, resent: boolean, cancelled: boolean}} Pending
 */

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 30_000;
const LONGEST_LOADING_DELAY_MS = 3_000;
/** A socket that lived this long was a good one, and the delays start small again. */
const PROVEN_MS = 5_000;
const CANCEL_PATIENCE_MS = 3_000;

/** The WebSocket closing code for a message the server finds too large (RFC 6455, 7.4.1). */
export const TOO_LARGE = 1009;

const LAST_EVENTS = ["response.completed", "response.incomplete", "response.failed", "error"];

export class Connection {
  /** @type {WebSocket|null} */
  #socket = null;
  #socketNumber = 0;
  /** @type {Pending[]} sent, in order; events belong to the first */
  #running = [];
  /** @type {Pending[]} waiting for a socket */
  #waiting = [];
  #attempt = 0;
  #timer = 0;
  /** Rises with each new try, so that a try that was overtaken knows it. */
  #try = 0;
  #key;
  #onPhase;
  #onModel;

  /**
   * @param {string} key empty for none
   * @param {(phase: Phase) => void} onPhase
   * @param {(model: string) => void} onModel
   */
  constructor(key, onPhase, onModel) {
    this.#key = key;
    this.#onPhase = onPhase;
    this.#onModel = onModel;
    window.addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => this.#hurry());
  }

  /** Opens the socket now, whatever delay was running. */
  async connect() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#socket) return;
    const mine = ++this.#try;
    this.#onPhase({ name: "checking" });
    const finding = await probe(this.#key);
    if (mine !== this.#try) return;
    switch (finding.kind) {
      case "ready":
        if (finding.model) this.#onModel(finding.model);
        return this.#open();
      case "key":
        return this.#onPhase({ name: "key", rejected: this.#key !== "" });
      case "refused":
        return this.#later("refused", finding.message);
      default:
        return this.#later(finding.kind, "");
    }
  }

  /** @param {string} key empty for none; the socket is opened anew with it */
  useKey(key) {
    this.#key = key;
    this.#drop(1000);
    void this.connect();
  }

  /** @param {Request} request */
  submit(request) {
    this.#waiting.push({ request, begun: false, resent: false, cancelled: false });
    this.#flush();
    this.#hurry();
  }

  /**
   * Ends a request: unsent it is forgotten; running it is asked to stop, and where no end comes
   * the socket is closed, which stops it as well.
   * @param {Request} request
   * @returns {boolean} whether an end (an event or `onLost`) is still to come
   */
  cancel(request) {
    const pending = this.#running.find((one) => one.request === request);
    if (!pending) {
      this.#waiting = this.#waiting.filter((one) => one.request !== request);
      return false;
    }
    pending.cancelled = true;
    this.#socket?.send(JSON.stringify({ type: "response.cancel" }));
    setTimeout(() => {
      if (this.#running.includes(pending)) this.#lose(1000);
    }, CANCEL_PATIENCE_MS);
    return true;
  }

  #open() {
    const url = new URL("./v1/responses", document.baseURI);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const protocols = this.#key ? ["realtime", `openai-insecure-api-key.${this.#key}`] : [];
    const socket = new WebSocket(url, protocols);
    this.#socket = socket;
    let openedAt = 0;
    socket.onopen = () => {
      openedAt = performance.now();
      this.#socketNumber += 1;
      this.#onPhase({ name: "open" });
      this.#flush();
    };
    socket.onmessage = (message) => {
      this.#attempt = 0;
      this.#receive(message.data);
    };
    socket.onclose = (closing) => {
      if (openedAt && performance.now() - openedAt > PROVEN_MS) this.#attempt = 0;
      this.#lose(closing.code, openedAt > 0);
    };
  }

  #flush() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    for (const pending of this.#waiting.splice(0)) {
      this.#running.push(pending);
      this.#socket.send(JSON.stringify(pending.request.build(this.#socketNumber)));
    }
  }

  /** @param {unknown} data */
  #receive(data) {
    const event = parse(data);
    const pending = this.#running[0];
    // A cancel can cross the end of its response on the way; the server's answer to it is no news.
    if (!event || !pending || event.code === "response_cancel_not_active") return;
    if (LAST_EVENTS.includes(event.type)) this.#running.shift();
    pending.begun = true;
    pending.request.onEvent(event);
  }

  /**
   * Closes the socket. What had not begun waits for the next one: often the old one was long dead,
   * and only the sending brought it to light. Twice lost is lost, lest a request that breaks the
   * server does so for ever.
   * @param {number} code
   */
  #drop(code) {
    const socket = this.#socket;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    this.#socket = null;
    const [first, ...behind] = this.#running.splice(0);
    this.#waiting.unshift(...behind);
    if (!first) return;
    if (first.begun || first.resent || first.cancelled || code === TOO_LARGE) {
      first.request.onLost(code);
    } else {
      first.resent = true;
      this.#waiting.unshift(first);
    }
  }

  /**
   * @param {number} code
   * @param {boolean} [wasOpen]
   */
  #lose(code, wasOpen = true) {
    this.#drop(code);
    this.#later(wasOpen ? "lost" : "refused", "");
  }

  /**
   * @param {"lost"|"unreachable"|"loading"|"refused"} why
   * @param {string} message
   */
  #later(why, message) {
    const longest = why === "loading" ? LONGEST_LOADING_DELAY_MS : LONGEST_DELAY_MS;
    const growing = Math.min(FIRST_DELAY_MS * 2 ** this.#attempt, longest);
    // Spread out, so that the pages of a restarted server do not all return at one moment.
    const delay = growing * (0.75 + Math.random() / 2);
    this.#attempt += 1;
    this.#onPhase({ name: "waiting", why, message, until: performance.now() + delay });
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => {
      // A page nobody looks at has no need of a socket until someone does.
      if (document.visibilityState === "visible" || this.#waiting.length > 0) void this.connect();
    }, delay);
  }

  /** The network is back, or the reader is: no reason to sit out the delay. */
  #hurry() {
    if (this.#timer && document.visibilityState === "visible") void this.connect();
  }
}

/**
 * @param {unknown} data
 * @returns {any} null for anything but a JSON object
 */
function parse(data) {
  try {
    const event = JSON.parse(String(data));
    return typeof event === "object" ? event : null;
  } catch {
    return null;
  }
}
