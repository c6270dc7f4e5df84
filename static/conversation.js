/**
 * The conversation as it happens: asks, takes in the events of the answer, stops, tries again,
 * starts anew, and keeps everything saved. It knows the wire and the data, and nothing of the DOM.
 */

import {
  asItems,
  emptyChat,
  fromSaved,
  isAlive,
  newTurn,
  numberOrNull,
  toSaved,
  turnsBefore,
} from "./chat.js";
import { TOO_LARGE } from "./connection.js";
import { Meter } from "./meter.js";
import { read, write } from "./storage.js";

/** The likeliest words: a small model strays from the point with any others. */
const TEMPERATURE = 0;

/**
 * @typedef {import("./chat.js").Chat} Chat
 * @typedef {import("./chat.js").Turn} Turn
 * @typedef {import("./chat.js").TurnStatus} TurnStatus
 * @typedef {import("./connection.js").Connection} Connection
 * @typedef {import("./connection.js").Request} Request
 */

/**
 * An answer on its way.
 * @typedef {object} Run
 * @property {Turn} turn
 * @property {Request} request
 * @property {Meter} meter
 * @property {boolean} stopping
 * @property {boolean} resent the whole conversation was already sent instead of a chain
 * @property {number} socketNumber
 * @property {number} partStart where in the answer the present content part begins
 */

/**
 * @typedef {object} Observer
 * @property {() => void} onChat another chat is shown, or its list of turns changed
 * @property {(turn: Turn, meter: Meter|null) => void} onTurn one turn changed
 * @property {() => void} onSaveFailed
 */

const SAVE_EVERY_MS = 1000;

export class Conversation {
  /** @type {Chat} */
  chat = fromSaved(read("chat")) ?? emptyChat();
  /** @type {Run|null} */
  #run = null;
  /**
   * The server's memory of the conversation: valid on this socket, right after this turn.
   * @type {{socketNumber: number, turnId: string, responseId: string}|null}
   */
  #chain = null;
  #saveTimer = 0;
  #connection;
  #observer;

  /**
   * @param {Connection} connection
   * @param {Observer} observer
   */
  constructor(connection, observer) {
    this.#connection = connection;
    this.#observer = observer;
    window.addEventListener("pagehide", () => this.#save());
  }

  /** Whether an answer is being waited for or written. */
  get busy() {
    return this.#run !== null;
  }

  get stopping() {
    return this.#run?.stopping ?? false;
  }

  /** @param {string} text */
  send(text) {
    if (this.busy) return;
    const turn = newTurn(text);
    this.chat.turns.push(turn);
    this.#begin(turn);
    this.#observer.onChat();
  }

  /** Asks for the answer to the last question once more. */
  tryAgain() {
    const turn = this.chat.turns.at(-1);
    if (this.busy || !turn) return;
    Object.assign(turn, { answer: "", status: "waiting", stats: null, fault: null });
    this.#begin(turn);
    this.#observer.onTurn(turn, null);
  }

  /** For a chat that no longer fits: the model reads the later half of the turns from now on. */
  forgetEarlier() {
    const turn = this.chat.turns.at(-1);
    if (this.busy || !turn) return;
    const earlier = turnsBefore(this.chat, turn);
    this.chat.readFrom = (earlier[Math.ceil(earlier.length / 2)] ?? turn).id;
    this.#chain = null;
    this.tryAgain();
    this.#observer.onChat();
  }

  /**
   * Takes the last question out of the chat, to be written anew.
   * @returns {string} its text
   */
  takeBack() {
    const turn = this.busy ? undefined : this.chat.turns.pop();
    this.#save();
    this.#observer.onChat();
    return turn?.user ?? "";
  }

  stop() {
    const run = this.#run;
    if (!run || run.stopping) return;
    run.stopping = true;
    if (!this.#connection.cancel(run.request)) return this.#finish(run, "stopped");
    this.#observer.onTurn(run.turn, run.meter);
  }

  /** Puts the chat aside, where `bringBack` finds it, and begins an empty one. */
  startNew() {
    if (this.chat.turns.length === 0) return;
    const run = this.#run;
    this.stop();
    if (run) settle(run, "stopped");
    this.#run = null;
    this.#chain = null;
    write("previous", toSaved(this.chat));
    this.chat = emptyChat();
    this.#save();
    this.#observer.onChat();
  }

  get canBringBack() {
    return this.chat.turns.length === 0 && (fromSaved(read("previous"))?.turns.length ?? 0) > 0;
  }

  bringBack() {
    if (!this.canBringBack) return;
    this.chat = fromSaved(read("previous")) ?? emptyChat();
    this.#save();
    this.#observer.onChat();
  }

  /** @param {Turn} turn */
  #begin(turn) {
    /** @type {Run} */
    const run = {
      turn,
      meter: new Meter(),
      stopping: false,
      resent: false,
      socketNumber: 0,
      partStart: 0,
      request: {
        build: (socketNumber) => this.#build(run, socketNumber),
        onEvent: (event) => this.#receive(run, event),
        onLost: (code) => this.#lost(run, code),
      },
    };
    this.#run = run;
    this.#save();
    this.#connection.submit(run.request);
  }

  /**
   * @param {Run} run
   * @param {number} socketNumber
   */
  #build(run, socketNumber) {
    run.socketNumber = socketNumber;
    const earlier = turnsBefore(this.chat, run.turn);
    const chain = this.#chain;
    const chained =
      chain !== null && chain.socketNumber === socketNumber && chain.turnId === earlier.at(-1)?.id;
    return {
      type: "response.create",
      store: false,
      temperature: TEMPERATURE,
      input: asItems(chained ? [] : earlier, run.turn.user),
      ...(chained && { previous_response_id: chain.responseId }),
    };
  }

  /**
   * @param {Run} run
   * @param {any} event
   */
  #receive(run, event) {
    const { turn } = run;
    switch (event.type) {
      case "response.content_part.added":
        run.partStart = turn.answer.length;
        return;
      case "response.output_text.delta":
        if (typeof event.delta !== "string") return;
        turn.status = "streaming";
        turn.answer += event.delta;
        run.meter.add(
          numberOrNull(event.ds4trio?.tokens) ?? 1,
          numberOrNull(event.ds4trio?.batch_size) ?? 0,
          performance.now(),
        );
        this.#saveSoon();
        break;
      case "response.output_text.done":
        // The whole text of the part settles what the deltas built up.
        if (typeof event.text !== "string") return;
        turn.answer = turn.answer.slice(0, run.partStart) + event.text;
        break;
      case "response.completed":
        return this.#finish(run, "done", event.response);
      case "response.incomplete": {
        const cancelled = event.response?.incomplete_details?.reason === "cancelled";
        return this.#finish(run, cancelled ? "stopped" : "cut", event.response);
      }
      case "response.failed":
        turn.fault = faultFrom(event.response?.error);
        return this.#finish(run, "failed", event.response);
      case "error":
        return this.#refused(run, faultFrom(event.error ?? event));
      default:
        return;
    }
    if (this.chat.turns.includes(turn)) this.#observer.onTurn(turn, run.meter);
  }

  /**
   * @param {Run} run
   * @param {import("./chat.js").Fault} fault
   */
  #refused(run, fault) {
    if (fault.code === "previous_response_not_found" && !run.resent && !run.stopping) {
      run.resent = true;
      this.#chain = null;
      this.#connection.submit(run.request);
      return;
    }
    run.turn.fault = fault;
    this.#finish(run, run.stopping ? "stopped" : "failed");
  }

  /**
   * @param {Run} run
   * @param {number} code of the WebSocket's closing
   */
  #lost(run, code) {
    if (code === TOO_LARGE) {
      run.turn.fault = { code: "payload_too_large", message: "" };
      return this.#finish(run, "failed");
    }
    this.#finish(run, run.stopping ? "stopped" : "interrupted");
  }

  /**
   * @param {Run} run
   * @param {TurnStatus} status
   * @param {any} [response] the final response, where there was one
   */
  #finish(run, status, response) {
    const { turn, meter } = run;
    settle(run, status, response);
    if (this.#run === run) this.#run = null;
    if (!this.chat.turns.includes(turn)) return;
    if (response?.id && status !== "failed" && turn.answer !== "") {
      const { socketNumber } = run;
      this.#chain = { socketNumber, turnId: turn.id, responseId: response.id };
    }
    this.#save();
    this.#observer.onTurn(turn, meter);
  }

  #saveSoon() {
    if (this.#saveTimer === 0) {
      this.#saveTimer = window.setTimeout(() => this.#save(), SAVE_EVERY_MS);
    }
  }

  #save() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = 0;
    // Where the quota is small, fewer turns are better than none.
    const kept = write("chat", toSaved(this.chat)) || write("chat", toSaved(this.chat, 20_000));
    if (!kept && this.chat.turns.some((turn) => !isAlive(turn))) this.#observer.onSaveFailed();
  }
}

/**
 * Writes the end of an answer into its turn: the server's figures, or else what was seen here.
 * @param {Run} run
 * @param {TurnStatus} status
 * @param {any} [response]
 */
function settle({ turn, meter }, status, response) {
  const figures = response?.ds4trio;
  turn.status = status;
  turn.stats = {
    tokensPerSecond: numberOrNull(figures?.tokens_per_second) ?? meter.tokensPerSecond,
    tokens: numberOrNull(response?.usage?.output_tokens) ?? (meter.tokens || null),
    firstTokenSeconds: numberOrNull(figures?.first_token_seconds),
    batchSize: numberOrNull(figures?.mean_batch_size) ?? meter.meanBatchSize,
  };
}

/**
 * @param {any} error
 * @returns {import("./chat.js").Fault}
 */
function faultFrom(error) {
  return { code: String(error?.code ?? "unknown"), message: String(error?.message ?? "") };
}
