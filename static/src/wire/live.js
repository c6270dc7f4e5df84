/** How busy the server is, as it tells it (`/v1/server/events`), for as long as somebody looks. */

import { EventSourceParserStream } from "eventsource-parser/stream";

/**
 * @typedef {object} Look
 * @property {number} time seconds of the server's clock
 * @property {boolean} ready
 * @property {number} sessions
 * @property {number} max_sessions
 * @property {number} waiting
 * @property {number} free_pages
 * @property {number} total_pages
 * @property {number} page_size
 * @property {number} context_length
 * @property {number} steps
 * @property {number} rows
 * @property {number} prefill_tokens
 * @property {number} cached_tokens
 * @property {number} sampled_tokens
 * @property {number} preemptions
 * @property {number} failed_steps
 */

const AGAIN_AFTER_MS = 2000;

/**
 * @param {() => string} key
 * @param {AbortSignal} signal ends it
 * @returns {AsyncGenerator<Look|null>} null where the server cannot be reached
 */
export async function* looks(key, signal) {
  while (!signal.aborted) {
    try {
      yield* connection(key(), signal);
    } catch {
      if (signal.aborted) return;
    }
    yield null;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER_MS));
  }
}

/**
 * @param {string} key
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Look>}
 */
async function* connection(key, signal) {
  const response = await fetch("./v1/server/events", {
    headers: key ? { Authorization: `Bearer ${key}` } : {},
    cache: "no-store",
    signal,
  });
  if (!response.ok || !response.body) return;
  const events = response.body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream())
    .getReader();
  for (;;) {
    const { value, done } = await events.read();
    if (done) return;
    yield JSON.parse(value.data);
  }
}
