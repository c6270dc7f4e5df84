/**
 * Follows a response that the server goes on writing though its socket is gone: server-sent events
 * over HTTP, from the first one that was not seen.
 */

import { EventSourceParserStream } from "eventsource-parser/stream";

/** The response is not there (any more), or may not be read. */
export class NotFollowable extends Error {}

/**
 * @param {string} responseId
 * @param {number} after sequence number of the last event that was seen; -1 for none
 * @param {{key: string, signal: AbortSignal}} options
 * @returns {AsyncGenerator<any>} its events, to the last one
 * @throws {NotFollowable} for good
 * @throws {TypeError} the server cannot be reached, or the connection broke
 */
export async function* follow(responseId, after, { key, signal }) {
  const query = new URLSearchParams({ stream: "true" });
  if (after >= 0) query.set("starting_after", `${after}`);
  const response = await fetch(`./v1/responses/${encodeURIComponent(responseId)}?${query}`, {
    headers: key ? { Authorization: `Bearer ${key}` } : {},
    cache: "no-store",
    signal,
  });
  // A server that is full, broken or in want of a key for the moment may do it later.
  const { status } = response;
  if (status === 401 || status === 429 || status >= 500) throw new TypeError(`HTTP ${status}`);
  if (!response.ok || !response.body) {
    const body = await response.json().catch(() => null);
    throw new NotFollowable(body?.error?.message ?? `HTTP ${response.status}`);
  }
  const events = response.body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream())
    .getReader();
  for (;;) {
    const { value, done } = await events.read();
    if (done) return;
    if (value.data !== "[DONE]") yield JSON.parse(value.data);
  }
}

/**
 * Asks the server to stop writing a response that no socket of ours carries.
 * @param {string} responseId
 * @param {string} key
 */
export async function cancel(responseId, key) {
  await fetch(`./v1/responses/${encodeURIComponent(responseId)}/cancel`, {
    method: "POST",
    headers: key ? { Authorization: `Bearer ${key}` } : {},
  });
}
