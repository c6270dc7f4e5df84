/**
 * One WebSocket to the server, kept up: it is opened anew with growing delays, and requests wait
 * for it. Each request has a lane (`stream_id`) of its own while it runs, so that answers are
 * written side by side and every event finds its request.
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
 * @property {() => object} build makes the `response.create`, less its lane, when it can be sent
 * @property {(event: any) => void} onEvent every event of the response, the last one included
 * @property {(code: number) => void} onLost the socket went (with this close code) before the end
 */

/**
 * A request and how far it came.
 * @typedef {{request: Request, begun: boolean, resent: boolean, cancelled: boolean}} Pending
 */

/** As many as the server lets run on one connection. */
const LANES = Array.from({ length: 16 }, (_, number) => `lane-${number + 1}`);
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 30_000;
const LONGEST_LOADING_DELAY_MS = 3_000;
/** A socket that lived this long was a good one, and the delays start small again. */
const PROVEN_MS = 5_000;
const CANCEL_PATIENCE_MS = 3_000;
/** A browser itself waits for minutes until a socket opens. */
const OPENING_PATIENCE_MS = 10_000;

/** The WebSocket closing code for a message the server finds too large (RFC 6455, 7.4.1). */
export const TOO_LARGE = 1009;

const LAST_EVENTS = [
  ...["response.completed", "response.incomplete", "response.failed", "response.cancelled"],
  "error",
];

export class Connection {
  /** Tokens that prompt and answer can have together; 0 while it is not known. */
  contextLength = 0;
  /** @type {WebSocket|null} */
  #socket = null;
  /** @type {Map<string, Pending>} sent, by lane */
  #running = new Map();
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
        this.contextLength = finding.contextLength;
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

  /** Empty for none. */
  get key() {
    return this.#key;
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
    const found = [...this.#running].find(([, one]) => one.request === request);
    if (!found) {
      this.#waiting = this.#waiting.filter((one) => one.request !== request);
      return false;
    }
    const [lane, pending] = found;
    pending.cancelled = true;
    this.#socket?.send(JSON.stringify({ type: "response.cancel", stream_id: lane }));
    setTimeout(() => {
      if (this.#running.get(lane) === pending) this.#lose(1000);
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
    setTimeout(() => {
      if (openedAt > 0 || this.#socket !== socket) return;
      this.#drop(1006);
      this.#later("unreachable", "");
    }, OPENING_PATIENCE_MS);
    socket.onopen = () => {
      openedAt = performance.now();
      this.#onPhase({ name: "open" });
      this.#flush();
    };
    socket.onmessage = (message) => this.#receive(message.data);
    socket.onclose = (closing) => {
      if (openedAt && performance.now() - openedAt > PROVEN_MS) this.#attempt = 0;
      this.#lose(closing.code, openedAt > 0);
    };
  }

  #flush() {
    const free = LANES.filter((lane) => !this.#running.has(lane));
    while (this.#socket?.readyState === WebSocket.OPEN && free.length > 0) {
      const pending = this.#waiting.shift();
      if (!pending) return;
      const lane = /** @type {string} */ (free.shift());
      this.#running.set(lane, pending);
      this.#socket.send(
        JSON.stringify({ ...pending.request.build(), type: "response.create", stream_id: lane }),
      );
    }
  }

  /** @param {unknown} data */
  #receive(data) {
    const event = parse(data);
    const lane = event?.stream_id;
    const pending = this.#running.get(lane);
    // A cancel can cross the end of its response on the way; the server's answer to it is no news.
    if (!event || !pending || event.code === "response_cancel_not_active") return;
    this.#attempt = 0;
    if (LAST_EVENTS.includes(event.type)) this.#running.delete(lane);
    pending.begun = true;
    pending.request.onEvent(event);
    this.#flush();
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
    const running = [...this.#running.values()];
    this.#running.clear();
    const lost = running.filter(
      (one) => one.begun || one.resent || one.cancelled || code === TOO_LARGE,
    );
    const again = running.filter((one) => !lost.includes(one));
    for (const one of again) one.resent = true;
    this.#waiting.unshift(...again);
    for (const one of lost) one.request.onLost(code);
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
