/**
 * One answer on its way into its message: asked for over the socket, and, when the socket or the
 * page went meanwhile, followed over HTTP from the first event that is missing.
 */

import { Meter } from "../meter.js";
import { isAlive } from "../model/chat.js";
import { TOO_LARGE } from "./connection.js";
import { NotFollowable, cancel, follow } from "./follow.js";

/**
 * @typedef {import("../model/chat.js").Message} Message
 * @typedef {import("../model/chat.js").Status} Status
 * @typedef {import("./connection.js").Connection} Connection
 */

/**
 * @typedef {object} Observer
 * @property {(run: Run) => void} onNamed the server has given the message a name, by which it can
 *   be found again
 * @property {(run: Run) => void} onProgress the message has changed
 * @property {(run: Run) => void} onEnd the message is not alive any more
 */

/** @typedef {{processed: number, total: number, cached: number}} Prefill tokens of the prompt */

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;
/** After so long without the server an answer counts as lost. */
const PATIENCE_MS = 10 * 60_000;
/** After so long without an end an answer that was to be stopped counts as stopped. */
const STOP_PATIENCE_MS = 3_000;
/** After these nothing more comes. */
const ENDS = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

export class Run {
  message;
  meter = new Meter();
  /** @type {Prefill|null} */
  prefill = null;
  stopping = false;
  /** Its connection was lost, and it is being looked for. */
  away = false;
  #observer;
  #connection;
  #followed = new AbortController();
  /** @type {import("./connection.js").Request|null} */
  #request = null;

  /**
   * @param {Message} message alive
   * @param {Connection} connection
   * @param {Observer} observer
   */
  constructor(message, connection, observer) {
    this.message = message;
    this.#connection = connection;
    this.#observer = observer;
  }

  /**
   * Asks for the answer.
   * @param {(whole: boolean) => object} build the body of the request; `whole` where the server
   *   does not know the response that it would continue
   */
  ask(build) {
    let whole = false;
    /** @type {import("./connection.js").Request} */
    const request = {
      build: () => build(whole),
      onEvent: (event) => {
        const error = event.type === "error" ? (event.error ?? event) : null;
        const isForgotten = error?.code === "previous_response_not_found" && !whole;
        if (isForgotten && !this.stopping) {
          whole = true;
          return this.#connection.submit(request);
        }
        this.#receive(event);
      },
      onLost: (closing) => this.#lost(closing),
    };
    this.#request = request;
    this.#connection.submit(request);
  }

  /** Follows an answer that was asked for earlier, by a page that is gone. */
  resume() {
    this.#request = null;
    void this.#follow();
  }

  /** Ends it with what there is. */
  stop() {
    if (this.stopping) return;
    this.stopping = true;
    const { responseId } = this.message;
    if (this.#request) {
      if (!this.#connection.cancel(this.#request)) return this.#end("stopped");
    } else if (responseId) {
      cancel(responseId, this.#connection.key).catch(() => this.#end("stopped"));
      setTimeout(() => this.#end("stopped"), STOP_PATIENCE_MS);
    }
    this.#observer.onProgress(this);
  }

  /** @param {any} event */
  #receive(event) {
    const { message } = this;
    if (!isAlive(message)) return;
    if (Number.isInteger(event.sequence_number) && event.type !== "error") {
      // An end is one whatever its number is: nothing else would come to end the waiting.
      if (event.sequence_number <= message.sequence && !ENDS.includes(event.type)) return;
      message.sequence = event.sequence_number;
    }
    switch (event.type) {
      case "response.created":
        message.responseId = text(event.response?.id) || null;
        message.status = "prefill";
        this.#observer.onNamed(this);
        break;
      case "response.ds4trio.prefill":
        this.prefill = {
          processed: number(event.processed) ?? 0,
          total: number(event.total) ?? 0,
          cached: number(event.cached) ?? 0,
        };
        break;
      case "response.reasoning_text.delta":
        message.status = "reasoning";
        message.reasoning += text(event.delta);
        this.#count(event);
        break;
      case "response.output_item.added":
        if (event.item?.type !== "function_call") return;
        message.status = "answering";
        message.calls.push({ name: text(event.item.name), arguments: "" });
        break;
      case "response.function_call_arguments.delta": {
        const call = message.calls.at(-1);
        if (call) call.arguments += text(event.delta);
        this.#count(event);
        break;
      }
      case "response.output_text.delta":
        message.status = "answering";
        message.text += text(event.delta);
        this.#count(event);
        break;
      case "response.completed":
        return this.#end("done", event.response);
      case "response.incomplete": {
        const cancelled = event.response?.incomplete_details?.reason === "cancelled";
        return this.#end(cancelled ? "stopped" : "cut", event.response);
      }
      case "response.failed":
        message.fault = faultFrom(event.response?.error);
        return this.#end("failed", event.response);
      case "response.cancelled":
        return this.#end("stopped", event.response);
      case "error":
        message.fault = this.stopping ? null : faultFrom(event.error ?? event);
        return this.#end(this.stopping ? "stopped" : "failed");
      default:
        return;
    }
    this.#observer.onProgress(this);
  }

  /** @param {any} event */
  #count(event) {
    const tokens = number(event.ds4trio?.tokens) ?? 1;
    this.meter.add(tokens, number(event.ds4trio?.batch_size) ?? 0, performance.now());
  }

  /** @param {number} closing code of the WebSocket's end */
  #lost(closing) {
    this.#request = null;
    if (closing === TOO_LARGE) {
      this.message.fault = { code: "payload_too_large", message: "" };
      return this.#end("failed");
    }
    if (this.stopping) {
      // Only asking ends it: the server goes on with an answer whose socket is gone.
      const { responseId } = this.message;
      if (responseId) cancel(responseId, this.#connection.key).catch(() => {});
      return this.#end("stopped");
    }
    void this.#follow();
  }

  async #follow() {
    const { message } = this;
    if (!message.responseId) return this.#end("interrupted");
    const { signal } = this.#followed;
    let until = performance.now() + PATIENCE_MS;
    let delay = FIRST_DELAY_MS;
    this.away = true;
    this.#observer.onProgress(this);
    while (!signal.aborted && isAlive(message) && performance.now() < until) {
      try {
        const options = { key: this.#connection.key, signal };
        for await (const event of follow(message.responseId, message.sequence, options)) {
          const before = message.sequence;
          this.away = false;
          this.#receive(event);
          if (message.sequence <= before) continue; // known: nobody is any further
          delay = FIRST_DELAY_MS;
          until = performance.now() + PATIENCE_MS;
        }
      } catch (error) {
        if (error instanceof NotFollowable) break;
      }
      if (!isAlive(message) || signal.aborted) return;
      this.away = true;
      this.#observer.onProgress(this);
      await new Promise((resolve) => setTimeout(resolve, delay));
      delay = Math.min(2 * delay, LONGEST_DELAY_MS);
    }
    if (!signal.aborted && isAlive(message)) this.#end("interrupted");
  }

  /**
   * @param {Status} status
   * @param {any} [response] the final one, where there is one
   */
  #end(status, response) {
    const { message, meter } = this;
    if (!isAlive(message)) return;
    this.#followed.abort();
    const usage = response?.usage;
    const figures = response?.ds4trio;
    this.away = false;
    message.status = status;
    message.stats = {
      promptTokens: number(usage?.input_tokens),
      cachedTokens: number(usage?.input_tokens_details?.cached_tokens),
      outputTokens: number(usage?.output_tokens) ?? (meter.tokens || null),
      reasoningTokens: number(usage?.output_tokens_details?.reasoning_tokens),
      firstTokenSeconds: number(figures?.first_token_seconds),
      tokensPerSecond: number(figures?.tokens_per_second) ?? meter.tokensPerSecond,
      batchSize: number(figures?.mean_batch_size) ?? meter.meanBatchSize,
    };
    this.#observer.onEnd(this);
  }
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : "";
}

/**
 * @param {unknown} value
 * @returns {number|null} null for what no count and no time can be
 */
function number(value) {
  const fits = typeof value === "number" && value >= 0 && value <= Number.MAX_SAFE_INTEGER;
  return fits ? value : null;
}

/**
 * @param {any} error
 * @returns {import("../model/chat.js").Fault}
 */
function faultFrom(error) {
  return { code: text(error?.code) || "unknown", message: text(error?.message) };
}
